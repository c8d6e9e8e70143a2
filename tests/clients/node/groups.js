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
  const consumer = kafka.consumer({
    groupId,
    sessionTimeout: 6000,
    heartbeatInterval: 200,
    maxBytesPerPartition: 32768,
    maxWaitTimeInMs: 50,
    retry: { ...retry, restartOnFailure: async () => true },
  });
  // Sent before the client asks where to begin.
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    const partitions = payload.memberAssignment[topic] || [];
    say([`assigned\t${Date.now()}\t${partitions.join(",")}\n`]);
  });
  let stopping = false;
  const ended = new Promise((resolve) => process.stdin.resume().on("end", resolve));
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isStale }) => {
      if (stopping || isStale() || batch.messages.length === 0) {
        return;
      }
      const { partition, messages } = batch;
      const last = messages[messages.length - 1].offset;
      const end = (BigInt(last) + 1n).toString();
      const lines = messages.map((m) => `record\t${partition}\t${m.offset}\t${m.value}\n`);
      say([...lines, `commit\t${partition}\t${end}\n`]);
      resolveOffset(last);
      try {
        await consumer.commitOffsets([{ topic, partition, offset: end }]);
        say([`committed\t${Date.now()}\t${partition}\t${end}\n`]);
      } catch (error) {
        // Who reads on from the last commit reads these again.
        console.error(String(error));
      }
      await heartbeat();
    },
  });
  await ended;
  stopping = true;
  await consumer.disconnect();
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
