//! The scripts, by their names in the contract: idempotence (I), reading (R), ApiVersions (A), and
//! what administers (D, which the contract has no vectors of).

mod admin;
mod frames;
mod idempotence;
mod reading;

use super::Vector;
use super::side::Setting;

macro_rules! after {
    () => {
        None
    };
    ($module:ident::$after:ident) => {
        Some(|play| Box::pin($module::$after(play)))
    };
}

macro_rules! vectors {
    ($($id:literal $setting:ident $module:ident::$name:ident $(, $after:ident)?;)*) => {
        /// All of them, in the order in which they play.
        pub const ALL: &[Vector] = &[$(Vector {
            id: $id,
            setting: Setting::$setting,
            script: |play| Box::pin($module::$name(play)),
            after_kill: after!($($module::$after)?),
        },)*];
    };
}

vectors! {
    "I01" Plain idempotence::i01;
    "I02" Plain idempotence::i02;
    "I04" Plain idempotence::i04;
    "I05" Plain idempotence::i05;
    "I07" Plain idempotence::i07;
    "I08" Plain idempotence::i08;
    "I10" Plain idempotence::i10;
    "I11" Plain idempotence::i11;
    "I13" Plain idempotence::i13;
    "I14" Plain idempotence::i14;
    "I16" Plain idempotence::i16;
    "I17" Plain idempotence::i17;
    "I19" Plain idempotence::i19;
    "I20" Plain idempotence::i20;
    "I22" Plain idempotence::i22;
    "I23" Plain idempotence::i23;
    "I25" Plain idempotence::i25;
    "I26" Plain idempotence::i26;
    "I28" Plain idempotence::i28;
    "I29" Plain idempotence::i29;
    "I35" Plain idempotence::i35;
    "I37" Plain idempotence::i37;
    "I38" Plain idempotence::i38;
    "I40" Plain idempotence::i40;
    "I41" Plain idempotence::i41;
    "R07" Plain reading::r07;
    "R09" Plain reading::r09;
    "R10" Plain reading::r10;
    "R13" Plain reading::r13;
    "R18" Plain reading::r18;
    "A01" Plain frames::a01;
    "A03" Plain frames::a03;
    "D-topics" Plain admin::topics;
    "D-partitions" Plain admin::partitions;
    "D-configs" Plain admin::configs;
    "D-broker" Plain admin::broker_keys;
    "D-cluster" Plain admin::cluster;
    "D-directories" Plain admin::directories;
    "D-elections" Plain admin::elections;
    "D-producers" Plain admin::producers;
    "I34" Plain idempotence::i34, i34_after;
    "R15" Plain reading::r15, r15_after;
    "R16" Plain reading::r16, r16_after;
    "R21" Plain reading::r21, r21_after;
    "I31" Forgetful idempotence::i31;
    "I32" Forgetful idempotence::i32;
    "R19" Forgetful reading::r19;
}
