"""Copies a partition to another topic, exactly once, through librdkafka, kafka-python or aiokafka.

    transactions.py (confluent-kafka | kafka-python | aiokafka) BOOTSTRAP FROM TO GROUP ID COUNT SEED

Reads partition 0 of FROM from the offset that GROUP has committed, up to COUNT records from the
start, and writes to TO; each batch of records and the offset behind them are one transaction of ID.
One transaction in five is aborted, by SEED, and its batch done again. Prints a line a transaction:
`commit TAB end` or `abort TAB end`. What fails ends the process at once, as a kill would: started
again, it goes on.
"""

import asyncio
import os
import random
import sys
import traceback

BATCH = 40
WAIT_S = 30


def say(outcome, end):
    sys.stdout.buffer.write(f"{outcome}\t{end}\n".encode())
    sys.stdout.buffer.flush()


def confluent_kafka(bootstrap, source, target, group, transactional_id, count, chance):
    from confluent_kafka import Consumer, Producer, TopicPartition

    consumer = Consumer({
        "bootstrap.servers": bootstrap,
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
    })
    producer = Producer({
        "bootstrap.servers": bootstrap,
        "transactional.id": transactional_id,
        # With another one librdkafka 2.16 waits for a coordinator by a connection that it gave up.
        "metadata.recovery.strategy": "none",
    })
    producer.init_transactions(WAIT_S)
    place = TopicPartition(source, 0)
    done = max(consumer.committed([place], WAIT_S)[0].offset, 0)
    consumer.assign([TopicPartition(source, 0, done)])
    while done < count:
        records = consumer.consume(BATCH, 1.0)
        records = [record for record in records if record.error() is None]
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            producer.produce(target, record.value(), partition=0)
        end = records[-1].offset() + 1
        offsets = [TopicPartition(source, 0, end)]
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata(), WAIT_S)
        if chance():
            producer.abort_transaction(WAIT_S)
            say("abort", end)
            consumer.seek(TopicPartition(source, 0, done))
        else:
            producer.commit_transaction(WAIT_S)
            say("commit", end)
            done = end
    consumer.close()


def kafka_python(bootstrap, source, target, group, transactional_id, count, chance):
    from kafka import KafkaConsumer, KafkaProducer
    from kafka.structs import OffsetAndMetadata, TopicPartition

    place = TopicPartition(source, 0)
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        isolation_level="read_committed",
        max_poll_records=BATCH,
    )
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    producer.init_transactions()
    consumer.assign([place])
    done = consumer.committed(place) or 0
    consumer.seek(place, done)
    while done < count:
        records = consumer.poll(timeout_ms=1000, max_records=BATCH).get(place, [])
        if not records:
            continue
        producer.begin_transaction()
        for record in records:
            producer.send(target, record.value, partition=0)
        end = records[-1].offset + 1
        offsets = {place: OffsetAndMetadata(end, "", -1)}
        producer.send_offsets_to_transaction(offsets, group)
        if chance():
            producer.abort_transaction()
            say("abort", end)
            consumer.seek(place, done)
        else:
            producer.commit_transaction()
            say("commit", end)
            done = end
    producer.close()
    consumer.close()


async def aiokafka(bootstrap, source, target, group, transactional_id, count, chance):
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

    place = TopicPartition(source, 0)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id)
    await consumer.start()
    await producer.start()
    consumer.assign([place])
    done = await consumer.committed(place) or 0
    consumer.seek(place, done)
    while done < count:
        records = await consumer.getmany(place, timeout_ms=1000, max_records=BATCH)
        records = records.get(place, [])
        if not records:
            continue
        await producer.begin_transaction()
        for record in records:
            await producer.send(target, record.value, partition=0)
        end = records[-1].offset + 1
        await producer.send_offsets_to_transaction({place: end}, group)
        if chance():
            await producer.abort_transaction()
            say("abort", end)
            consumer.seek(place, done)
        else:
            await producer.commit_transaction()
            say("commit", end)
            done = end
    await producer.stop()
    await consumer.stop()


def main():
    library, *where, count, seed = sys.argv[1:]
    dice = random.Random(int(seed))
    arguments = (*where, int(count), lambda: dice.random() < 0.2)
    if library == "aiokafka":
        asyncio.run(aiokafka(*arguments))
    else:
        {"confluent-kafka": confluent_kafka, "kafka-python": kafka_python}[library](*arguments)


try:
    main()
except Exception:
    traceback.print_exc()
    sys.stderr.flush()
    # No destructor of a client may wait.
    os._exit(1)
