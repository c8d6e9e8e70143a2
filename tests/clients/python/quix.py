"""A stateful stream with exactly-once: counts and sums the integers of each key.

Takes BOOTSTRAP INPUT OUTPUT STATE_DIR [TRANSACTIONAL_ID] and runs until it is killed.
"""

import sys
import time

from quixstreams import Application

bootstrap, source, target, state_dir, *fixed = sys.argv[1:]

# A session and a transaction that a kill leaves behind end soon.
producer = {"transaction.timeout.ms": 10000}
if fixed:
    producer["transactional.id"] = fixed[0]

app = Application(
    broker_address=bootstrap,
    consumer_group="quix",
    processing_guarantee="exactly-once",
    commit_interval=0.3,
    auto_offset_reset="earliest",
    state_dir=state_dir,
    consumer_extra_config={"session.timeout.ms": 6000},
    producer_extra_config=producer,
)


def tally(value, state):
    # The whole takes seconds, so that a kill finds it at work.
    time.sleep(0.0004)
    count = state.get("count", 0) + 1
    total = state.get("sum", 0) + value
    state.set("count", count)
    state.set("sum", total)
    return {"value": value, "count": count, "sum": total}


numbers = app.dataframe(app.topic(source, key_deserializer="str", value_deserializer="json"))
numbers.apply(tally, stateful=True).to_topic(
    app.topic(target, key_serializer="str", value_serializer="json")
)
app.run()
