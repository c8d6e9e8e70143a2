// What @platformatic/kafka does with a broker: topics, records, a group, transactions.
//
//     smoke.mjs MODULES BOOTSTRAP
//
// MODULES is the folder in which the client is installed. Prints `PASS name` for each part.
import assert from "node:assert/strict";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const [modules, bootstrap] = process.argv.slice(2);
const require = createRequire(path.join(modules, "package.json"));
const client = await import(pathToFileURL(require.resolve("@platformatic/kafka")).href);
const { Admin, Consumer, Producer, stringDeserializers, stringSerializers } = client;

const base = { clientId: "smoke", bootstrapBrokers: [bootstrap], retries: 20, retryDelay: 200 };
const record = (topic, number) => ({
  topic,
  key: `k${number}`,
  value: `v${number}`,
  partition: number % 2,
  headers: { n: String(number) },
});
const records = (topic, from, count) =>
  Array.from({ length: count }, (_, index) => record(topic, from + index));
const values = (from, count) => Array.from({ length: count }, (_, index) => `v${from + index}`);

/** Reads until there are as many records as are due. */
async function read(topic, groupId, count, options) {
  const consumer = new Consumer({ ...base, groupId, deserializers: stringDeserializers });
  const stream = await consumer.consume({
    autocommit: false,
    topics: [topic],
    mode: "earliest",
    sessionTimeout: 10000,
    heartbeatInterval: 500,
    maxWaitTime: 200,
    ...options,
  });
  const seen = [];
  for await (const message of stream) {
    seen.push(message);
    if (seen.length >= count) {
      break;
    }
  }
  for (const message of seen) {
    await message.commit();
  }
  await consumer.close(true);
  return seen;
}

async function topics(admin) {
  await admin.createTopics({ topics: ["smoke", "smoke-txn"], partitions: 2, replicas: 1 });
  const listed = await admin.listTopics();
  assert.ok(listed.includes("smoke") && listed.includes("smoke-txn"), String(listed));
  const asked = [{ name: "smoke", partitions: [0, 1] }];
  const [broker] = await admin.describeLogDirs({ topics: asked });
  assert.equal(broker.results.length, 1);
  assert.equal(broker.results[0].topics[0].partitions.length, 2);
}

async function group() {
  const producer = new Producer({ ...base, serializers: stringSerializers, idempotent: true });
  for (let from = 0; from < 40; from += 10) {
    await producer.send({ messages: records("smoke", from, 10), acks: -1 });
  }
  await producer.close();
  const seen = await read("smoke", "smoke", 40);
  assert.deepEqual(seen.map((one) => one.value).sort(), values(0, 40).sort());
  const one = seen.find((message) => message.value === "v7");
  assert.equal(one.key, "k7");
  assert.equal(one.headers.get("n"), "7");
  assert.equal(one.partition, 1);
}

async function transactions() {
  const producer = new Producer({
    ...base,
    serializers: stringSerializers,
    idempotent: true,
    transactionalId: "smoke",
  });
  for (const [from, commit] of [[0, true], [10, false], [20, true]]) {
    const transaction = await producer.beginTransaction();
    await transaction.send({ messages: records("smoke-txn", from, 10) });
    await (commit ? transaction.commit() : transaction.abort());
  }
  await producer.close();
  const seen = await read("smoke-txn", "smoke-txn", 20, { isolationLevel: 1 });
  const expected = [...values(0, 10), ...values(20, 10)];
  assert.deepEqual(seen.map((one) => one.value).sort(), expected.sort());
}

const admin = new Admin(base);
await topics(admin);
console.log("PASS topics");
await admin.close();
await group();
console.log("PASS group");
await transactions();
console.log("PASS transactions");
process.exit(0);
