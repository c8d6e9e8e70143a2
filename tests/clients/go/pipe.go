package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const abortPercent = 10

// pipe moves records from topic to topic in transactions, with the offsets, until standard input
// ends; see ../README.md.
func pipe(bootstrap, source, group, target, transactionalID string) error {
	session, err := kgo.NewGroupTransactSession(
		kgo.SeedBrokers(bootstrap),
		kgo.RetryBackoffFn(func(int) time.Duration { return 20 * time.Millisecond }),
		kgo.MetadataMinAge(50*time.Millisecond),
		kgo.TransactionalID(transactionalID),
		kgo.TransactionTimeout(time.Minute),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(source),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.RequireStableFetchOffsets(),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(200*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	most, err := strconv.Atoi(os.Getenv("FENCEPOST_PIPES_BATCH"))
	if err != nil {
		most = 200
	}
	for ctx.Err() == nil {
		fetches := session.PollRecords(ctx, most)
		for _, failed := range fetches.Errors() {
			fmt.Fprintln(os.Stderr, failed.Err)
		}
		records := fetches.Records()
		if len(records) == 0 {
			continue
		}
		if err := move(session, records, target); err != nil {
			return err
		}
	}
	return nil
}

func move(session *kgo.GroupTransactSession, records []*kgo.Record, target string) error {
	if err := session.Begin(); err != nil {
		return err
	}
	failed := kgo.AbortingFirstErrPromise(session.Client())
	for _, r := range records {
		moved := &kgo.Record{Topic: target, Partition: r.Partition, Value: r.Value}
		session.Produce(context.Background(), moved, failed.Promise())
	}
	wish := kgo.TransactionEndTry(failed.Err() == nil && rand.IntN(100) >= abortPercent)
	// What is aborted, it reads again by itself.
	committed, err := session.End(context.Background(), wish)
	if err != nil {
		return err
	}
	word := "aborted"
	if committed {
		word = "committed"
	}
	fmt.Printf("%s\t%d\n", word, len(records))
	return nil
}
