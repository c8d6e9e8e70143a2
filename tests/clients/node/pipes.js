// Moves records from topic to topic in transactions through kafkajs, with the offsets, until
// standard input ends.
//
//     pipes.js BOOTSTRAP INPUT GROUP OUTPUT TRANSACTIONAL_ID
//
// See ../README.md. An error that a session does not survive ends the program.
"use strict";

const fs = require("fs");
const { Kafka, logLevel } = require("kafkajs");

const ABORT_PERCENT = 10;
// Records of a transaction; without it, as many as a batch has.
const MOST = Number(process.env.FENCEPOST_PIPES_BATCH || Infinity);

const say = (word, count) => fs.writeSync(1, `${word}\t${count}\n`);

async function main([bootstrap, source, groupId, target, transactionalId]) {
  const retry = { initialRetryTime: 50, maxRetryTime: 300, retries: 100 };
  const kafka = new Kafka({ brokers: [bootstrap], logLevel: logLevel.WARN, retry });
  const producer = kafka.producer({
    transactionalId,
    transactionTimeout: 60000,
    idempotent: true,
    maxInFlightRequests: 1,
    retry,
  });
  const consumer = kafka.consumer({
    groupId,
    sessionTimeout: 6000,
    heartbeatInterval: 200,
    maxBytesPerPartition: 32768,
    maxWaitTimeInMs: 100,
    readUncommitted: false,
    retry: { ...retry, restartOnFailure: async () => true },
  });
  let stopping = false;
  const ended = new Promise((resolve) => process.stdin.resume().on("end", resolve));
  await producer.connect();
  await consumer.connect();
  await consumer.subscribe({ topics: [source], fromBeginning: true });
  await consumer.run({
    autoCommit: false,
    eachBatchAutoResolve: false,
    eachBatch: async ({ batch, resolveOffset, heartbeat, isStale, isRunning }) => {
      if (stopping || isStale() || !isRunning() || batch.messages.length === 0) {
        return;
      }
      const { partition } = batch;
      // The rest comes again: it is not resolved.
      const messages = batch.messages.slice(0, MOST);
      const last = messages[messages.length - 1].offset;
      const end = (BigInt(last) + 1n).toString();
      const transaction = await producer.transaction();
      try {
        const moved = messages.map((message) => ({ partition, value: message.value }));
        await transaction.send({ topic: target, messages: moved });
        const topics = [{ topic: source, partitions: [{ partition, offset: end }] }];
        await transaction.sendOffsets({ consumerGroupId: groupId, topics });
      } catch (error) {
        console.error(String(error));
        await transaction.abort();
        say("aborted", messages.length);
        return;
      }
      if (Math.random() * 100 < ABORT_PERCENT) {
        await transaction.abort();
        say("aborted", messages.length);
      } else {
        await transaction.commit();
        say("committed", messages.length);
        resolveOffset(last);
      }
      await heartbeat();
    },
  });
  consumer.on(consumer.events.CRASH, ({ payload }) => {
    console.error(payload.error);
    process.exit(1);
  });
  await ended;
  stopping = true;
  await consumer.disconnect();
  await producer.disconnect();
}

main(process.argv.slice(2)).then(
  () => process.exit(0),
  (error) => {
    console.error(error);
    process.exit(1);
  },
);
