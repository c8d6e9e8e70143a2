// A member of a consumer group through kafkajs, until standard input ends.
//
//     groups.js BOOTSTRAP TOPIC GROUP > LINES
//
// Lines are those of ../README.md. The assignor is kafkajs's only one, RoundRobinAssigner.
"use strict";

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

// Whole lines at once, so that a kill leaves no half of one behind the next.
const say = (lines) => fs.writeSync(1, lines.join(""));

async function main([bootstrap, topic, groupId]) {
  const retry = { initialRetryTime: 50, maxRetryTime: 300, retries: 1000 };
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.WARN, retry });
  const state = { stopping: false };
  const ended = new Promise((resolve) => process.stdin.resume().on("end", resolve));
  while (!state.stopping) {
    const consumer = kafka.consumer({
      groupId,
      sessionTimeout: 6000,
      heartbeatInterval: 200,
      maxBytesPerPartition: 32768,
      maxWaitTimeInMs: 50,
      retry: { ...retry, restartOnFailure: async () => true },
    });
    // It gives up, whatever it is told, when no broker answers while it looks for its coordinator:
    // then another one takes its place, as services have it.
    const gaveUp = new Promise((resolve) => {
      consumer.on(consumer.events.CRASH, ({ payload }) => {
        if (!payload.restart) {
          console.error(payload.error);
          resolve();
        }
      });
    });
    await consume(consumer, topic, state);
    await Promise.race([ended.then(() => (state.stopping = true)), gaveUp]);
    await consumer.disconnect();
  }
}

async function consume(consumer, topic, state) {
  // Sent before the client asks where to begin.
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const partitions = payload.memberAssignment[topic] || [];
    say([`assigned\t${Date.now()}\t${partitions.join(",")}\n`]);
  });
  // Sent only when the broker has taken the commit: a call that commits may end well without.
  consumer.on(consumer.events.COMMIT_OFFSETS, ({ payload }) => {
    const at = Date.now();
    for (const { partitions } of payload.topics) {
      say(partitions.map((p) => `committed\t${at}\t${p.partition}\t${p.offset}\n`));
    }
  });
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, commitOffsetsIfNecessary, heartbeat, isStale }) => {
      if (state.stopping || isStale() || batch.messages.length === 0) {
        return;
      }
      const { partition, messages } = batch;
      const last = messages[messages.length - 1].offset;
      const end = (BigInt(last) + 1n).toString();
      const lines = messages.map((m) => `record\t${partition}\t${m.offset}\t${m.value}\n`);
      say([...lines, `commit\t${partition}\t${end}\n`]);
      resolveOffset(last);
      // What it throws is for the consumer to see: it joins again where it is no member any more.
      // `consumer.commitOffsets` hides the code, and ends well when it fails while the consumer
      // stops.
      const partitions = [{ partition, offset: end }];
      await commitOffsetsIfNecessary({ topics: [{ topic, partitions }] });
      await heartbeat();
    },
  });
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
