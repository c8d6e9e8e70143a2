//! Responses that can be large whatever their request was.

use std::ops::{Deref, DerefMut};

use crate::answer_budget::AnswerRoom;

/// A response with what it holds of the budget for answers.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Wide<T> {
    /// The response.
    pub body: T,
    /// Kept until the response is written.
    pub room: AnswerRoom,
}

impl<T> From<T> for Wide<T> {
    fn from(body: T) -> Self {
        Self {
            body,
            room: AnswerRoom::default(),
        }
    }
}

impl<T> Deref for Wide<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.body
    }
}

impl<T> DerefMut for Wide<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.body
    }
}
