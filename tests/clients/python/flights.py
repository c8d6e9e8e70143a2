"""Moves the lines of the flights suite through confluent-kafka.

    flights.py produce BOOTSTRAP TOPIC < LINES        a line: partition TAB value
    flights.py consume BOOTSTRAP TOPIC PARTITIONS COUNT > LINES

consume reads every partition from its start, without a group, until COUNT records have come;
a line it prints is: partition TAB offset TAB key TAB value.
"""

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

# Outlive a broker that is away for a moment.
PATIENT = {
    "reconnect.backoff.ms": 10,
    "reconnect.backoff.max.ms": 100,
    "retry.backoff.ms": 20,
}
CALLBACK_EVERY = 2_000


def produce(bootstrap, topic):
    failures = []

    def on_delivery(error, message):
        if error is not None:
            failures.append(f"partition {message.partition()}: {error}")

    def on_error(error):
        if error.fatal():
            failures.append(f"fatal: {error}")

    producer = Producer(
        PATIENT
        | {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "message.timeout.ms": 180_000,
            "compression.type": "gzip",
            "linger.ms": 2,
            "error_cb": on_error,
            "on_delivery": on_delivery,
        }
    )
    for number, line in enumerate(sys.stdin.buffer):
        partition, _, value = line.rstrip(b"\n").partition(b"\t")
        while True:
            try:
                producer.produce(topic, value, partition=int(partition))
                break
            except BufferError:
                producer.poll(0.1)
        if number % CALLBACK_EVERY == 0:
            producer.poll(0)
        if failures:
            break
    left = producer.flush(180)
    if left:
        failures.append(f"{left} records were not delivered")
    if failures:
        sys.exit(f"flights.py: {failures[0]} (and {len(failures) - 1} more)")


def consume(bootstrap, topic, partitions, count):
    consumer = Consumer(
        PATIENT
        | {
            "bootstrap.servers": bootstrap,
            # Required by the client, unused: partitions are assigned and nothing is committed.
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
    consumer.assign([TopicPartition(topic, p, OFFSET_BEGINNING) for p in range(partitions)])
    out = sys.stdout.buffer
    while count > 0:
        for message in consumer.consume(num_messages=min(count, 10_000), timeout=1):
            if message.error() is not None:
                raise KafkaException(message.error())
            key = message.key() or b""
            head = b"%d\t%d\t" % (message.partition(), message.offset())
            out.write(head + key + b"\t" + message.value() + b"\n")
            count -= 1
    out.flush()
    consumer.close()


def main(arguments):
    match arguments:
        case ["produce", bootstrap, topic]:
            produce(bootstrap, topic)
        case ["consume", bootstrap, topic, partitions, count]:
            consume(bootstrap, topic, int(partitions), int(count))
        case _:
            sys.exit(__doc__)


main(sys.argv[1:])
