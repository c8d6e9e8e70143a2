/*
 * Transactions of librdkafka as fast as they go, or at a rate, for the benchmark.
 * Argument: BOOTSTRAP. Standard input has one case a line; see ../README.md. Any error ends the
 * process with 1.
 */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "rdkafka.h"

#define LINE_MAX_BYTES 4096
#define VALUE_MAX_BYTES 65536

struct setup {
    char name[256], topic[256], input[256];
    int partitions, producers, records, touched, bytes, offsets;
    long warmup_ms, ms, rate;
};

struct worker {
    pthread_t thread;
    int index;
    rd_kafka_t *rk;
    rd_kafka_topic_partition_list_t *place;
    rd_kafka_consumer_group_metadata_t *group;
    char *value;
    long all, counted;
    long *us;
    size_t len, room;
};

static const char *bootstrap;
static struct setup setup;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int ready;
/* When the load began; 0 before. */
static int64_t began;

static void fail(const char *what, const char *why) {
    fprintf(stderr, "%s: %s\n", what, why);
    fflush(stderr);
    _Exit(1);
}

static void check(const char *what, rd_kafka_error_t *error) {
    if (error)
        fail(what, rd_kafka_error_string(error));
}

static int64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void delivered(rd_kafka_t *rk, const rd_kafka_message_t *message, void *opaque) {
    (void)rk;
    (void)opaque;
    if (message->err)
        fail("delivery", rd_kafka_err2str(message->err));
}

static rd_kafka_t *producer(int index) {
    char reason[512], id[300];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    snprintf(id, sizeof(id), "%s-%d", setup.name, index);
    if (rd_kafka_conf_set(conf, "bootstrap.servers", bootstrap, reason, sizeof(reason)) ||
        rd_kafka_conf_set(conf, "transactional.id", id, reason, sizeof(reason)))
        fail("configuration", reason);
    rd_kafka_conf_set_dr_msg_cb(conf, delivered);
    rd_kafka_t *rk = rd_kafka_new(RD_KAFKA_PRODUCER, conf, reason, sizeof(reason));
    if (!rk)
        fail("producer", reason);
    return rk;
}

static void transaction(struct worker *worker, int number) {
    int32_t head[2] = {worker->index, number};
    memcpy(worker->value, head, sizeof(head));
    check("begin", rd_kafka_begin_transaction(worker->rk));
    for (int record = 0; record < setup.records; record++) {
        int partition = (worker->index + number + record % setup.touched) % setup.partitions;
        rd_kafka_resp_err_t error = rd_kafka_producev(
            worker->rk, RD_KAFKA_V_TOPIC(setup.topic), RD_KAFKA_V_PARTITION(partition),
            RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY),
            RD_KAFKA_V_VALUE(worker->value, (size_t)setup.bytes), RD_KAFKA_V_END);
        if (error)
            fail("produce", rd_kafka_err2str(error));
    }
    if (setup.offsets) {
        worker->place->elems[0].offset = number + 1;
        check("offsets", rd_kafka_send_offsets_to_transaction(worker->rk, worker->place,
                                                              worker->group, -1));
    }
    check("commit", rd_kafka_commit_transaction(worker->rk, -1));
}

static void add_latency(struct worker *worker, int64_t ns) {
    if (worker->len == worker->room) {
        worker->room = worker->room ? 2 * worker->room : 1024;
        worker->us = realloc(worker->us, worker->room * sizeof(*worker->us));
        if (!worker->us)
            fail("latencies", "no memory");
    }
    worker->us[worker->len++] = (long)(ns / 1000);
}

static void load(struct worker *worker) {
    int64_t from = began + setup.warmup_ms * 1000000;
    int64_t end = from + setup.ms * 1000000;
    int64_t interval = setup.rate ? setup.producers * INT64_C(1000000000) / setup.rate : 0;
    for (int number = 1;; number++) {
        int64_t due = now_ns();
        if (interval)
            due = began + interval * worker->index / setup.producers + interval * (number - 1);
        if (due >= end)
            return;
        for (int64_t left = due - now_ns(); left > 0; left = due - now_ns()) {
            struct timespec pause = {left / 1000000000, left % 1000000000};
            nanosleep(&pause, NULL);
        }
        transaction(worker, number);
        int64_t now = now_ns();
        worker->all++;
        worker->counted += now >= from && now < end;
        if (due >= from)
            add_latency(worker, now - due);
    }
}

static void *work(void *opaque) {
    struct worker *worker = opaque;
    char group[300];
    worker->rk = producer(worker->index);
    worker->value = calloc(1, VALUE_MAX_BYTES);
    snprintf(group, sizeof(group), "%s-%d", setup.name, worker->index);
    worker->group = rd_kafka_consumer_group_metadata_new(group);
    worker->place = rd_kafka_topic_partition_list_new(1);
    rd_kafka_topic_partition_list_add(worker->place, setup.input, worker->index);
    if (!worker->value || !worker->group)
        fail("worker", "no memory");
    check("init", rd_kafka_init_transactions(worker->rk, -1));
    transaction(worker, 0);
    pthread_mutex_lock(&lock);
    ready++;
    pthread_cond_broadcast(&changed);
    while (!began)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
    load(worker);
    rd_kafka_topic_partition_list_destroy(worker->place);
    rd_kafka_consumer_group_metadata_destroy(worker->group);
    rd_kafka_destroy(worker->rk);
    free(worker->value);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    long x = *(const long *)a, y = *(const long *)b;
    return (x > y) - (x < y);
}

static long quantile(const long *us, size_t len, double share) {
    size_t at = (size_t)(share * (double)len);
    return len ? us[at < len ? at : len - 1] : 0;
}

static void report(struct worker *workers) {
    long all = 0, counted = 0, *us = NULL;
    size_t len = 0;
    for (int i = 0; i < setup.producers; i++)
        len += workers[i].len;
    us = malloc((len + 1) * sizeof(*us));
    if (!us)
        fail("latencies", "no memory");
    len = 0;
    for (int i = 0; i < setup.producers; i++) {
        struct worker *worker = &workers[i];
        all += worker->all;
        counted += worker->counted;
        if (worker->len)
            memcpy(us + len, worker->us, worker->len * sizeof(*us));
        len += worker->len;
        free(worker->us);
    }
    qsort(us, len, sizeof(*us), by_value);
    printf("done all=%ld counted=%ld p50_us=%ld p99_us=%ld\n", all, counted,
           quantile(us, len, 0.5), quantile(us, len, 0.99));
    fflush(stdout);
    free(us);
}

static void set(const char *key, const char *value) {
    struct { const char *key; char *text; } texts[] = {
        {"name", setup.name}, {"topic", setup.topic}, {"input", setup.input}};
    struct { const char *key; int *number; } numbers[] = {
        {"partitions", &setup.partitions}, {"producers", &setup.producers},
        {"records", &setup.records},       {"touched", &setup.touched},
        {"bytes", &setup.bytes},           {"offsets", &setup.offsets}};
    struct { const char *key; long *number; } longs[] = {
        {"warmup_ms", &setup.warmup_ms}, {"ms", &setup.ms}, {"rate", &setup.rate}};
    for (size_t i = 0; i < sizeof(texts) / sizeof(*texts); i++)
        if (!strcmp(texts[i].key, key))
            snprintf(texts[i].text, sizeof(setup.name), "%s", value);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(*numbers); i++)
        if (!strcmp(numbers[i].key, key))
            *numbers[i].number = atoi(value);
    for (size_t i = 0; i < sizeof(longs) / sizeof(*longs); i++)
        if (!strcmp(longs[i].key, key))
            *longs[i].number = atol(value);
}

static void parse(char *line) {
    memset(&setup, 0, sizeof(setup));
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
        char *equals = strchr(word, '=');
        if (!equals)
            fail("not KEY=VALUE", word);
        *equals = 0;
        set(word, equals + 1);
    }
    if (setup.producers < 1 || setup.records < 1 || setup.touched < 1 || setup.partitions < 1)
        fail("case", "producers, records, touched and partitions are at least 1");
    if (setup.bytes < 8 || setup.bytes > VALUE_MAX_BYTES)
        fail("case", "bytes is 8 to 65536");
}

int main(int argc, char **argv) {
    static char line[LINE_MAX_BYTES];
    if (argc != 2)
        fail("arguments", "BOOTSTRAP");
    bootstrap = argv[1];
    while (fgets(line, sizeof(line), stdin)) {
        parse(line);
        ready = 0;
        began = 0;
        struct worker *workers = calloc((size_t)setup.producers, sizeof(*workers));
        if (!workers)
            fail("workers", "no memory");
        for (int i = 0; i < setup.producers; i++) {
            workers[i].index = i;
            if (pthread_create(&workers[i].thread, NULL, work, &workers[i]))
                fail("thread", "not started");
        }
        pthread_mutex_lock(&lock);
        while (ready < setup.producers)
            pthread_cond_wait(&changed, &lock);
        pthread_mutex_unlock(&lock);
        printf("ready\n");
        fflush(stdout);
        if (!fgets(line, sizeof(line), stdin))
            return 0;
        pthread_mutex_lock(&lock);
        began = now_ns();
        pthread_cond_broadcast(&changed);
        pthread_mutex_unlock(&lock);
        for (int i = 0; i < setup.producers; i++)
            pthread_join(workers[i].thread, NULL);
        report(workers);
        free(workers);
    }
    return 0;
}
