// Command flights-franz-go moves the lines of the flights suite through franz-go.
//
//	flights-franz-go produce BOOTSTRAP TOPIC < LINES        a line: partition TAB value
//	flights-franz-go consume BOOTSTRAP TOPIC PARTITIONS COUNT > LINES
//	flights-franz-go group BOOTSTRAP TOPIC GROUP STRATEGY [INSTANCE] > LINES
//
// consume reads every partition from its start, without a group, until COUNT records have
// come; a line it prints is: partition TAB offset TAB key TAB value.
//
//	flights-franz-go pipe BOOTSTRAP INPUT GROUP OUTPUT TRANSACTIONAL_ID
//
// group is a member of a group until standard input ends, in the words of ../README.md.
package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "flights-franz-go:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 3 && args[0] == "produce":
		return produce(args[1], args[2])
	case len(args) == 5 && args[0] == "consume":
		partitions, err := strconv.ParseInt(args[3], 10, 32)
		if err != nil {
			return fmt.Errorf("PARTITIONS: %w", err)
		}
		count, err := strconv.ParseInt(args[4], 10, 64)
		if err != nil {
			return fmt.Errorf("COUNT: %w", err)
		}
		return consume(args[1], args[2], int32(partitions), count)
	case len(args) == 5 && args[0] == "group":
		return member(args[1], args[2], args[3], args[4], "")
	case len(args) == 6 && args[0] == "group":
		return member(args[1], args[2], args[3], args[4], args[5])
	case len(args) == 6 && args[0] == "pipe":
		return pipe(args[1], args[2], args[3], args[4], args[5])
	default:
		return errors.New("usage: produce BOOTSTRAP TOPIC | " +
			"consume BOOTSTRAP TOPIC PARTITIONS COUNT | " +
			"group BOOTSTRAP TOPIC GROUP STRATEGY [INSTANCE] | " +
			"pipe BOOTSTRAP INPUT GROUP OUTPUT TRANSACTIONAL_ID")
	}
}

// connect adds what both directions need to outlive a broker that is away for a moment.
func connect(bootstrap string, opts ...kgo.Opt) (*kgo.Client, error) {
	backoff := func(int) time.Duration { return 20 * time.Millisecond }
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(bootstrap),
		kgo.RetryBackoffFn(backoff),
		kgo.RetryTimeout(3 * time.Minute),
		kgo.MetadataMinAge(50 * time.Millisecond),
	}, opts...)...)
}

// produce keeps franz-go's defaults: idempotent, acks from all, snappy.
func produce(bootstrap, topic string) error {
	client, err := connect(bootstrap,
		kgo.DefaultProduceTopic(topic),
		kgo.AllowAutoTopicCreation(),
		kgo.UnknownTopicRetries(-1),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.StopProducerOnDataLossDetected(),
		kgo.RecordDeliveryTimeout(3*time.Minute),
		kgo.ProducerLinger(2*time.Millisecond),
	)
	if err != nil {
		return err
	}
	defer client.Close()

	var once sync.Once
	var failed error
	onDelivery := func(record *kgo.Record, err error) {
		if err != nil {
			once.Do(func() { failed = fmt.Errorf("partition %d: %w", record.Partition, err) })
		}
	}
	ctx := context.Background()
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	for {
		line, err := input.ReadBytes('\n')
		if err == io.EOF && len(line) == 0 {
			break
		}
		if err != nil {
			return fmt.Errorf("standard input: %w", err)
		}
		number, value, found := bytes.Cut(line[:len(line)-1], []byte{'\t'})
		partition, parseErr := strconv.ParseInt(string(number), 10, 32)
		if !found || parseErr != nil {
			return fmt.Errorf("not a partition, a tab and a value: %q", line)
		}
		client.Produce(ctx, &kgo.Record{Partition: int32(partition), Value: value}, onDelivery)
	}
	if err := client.Flush(ctx); err != nil {
		return err
	}
	return failed
}

func consume(bootstrap, topic string, partitions int32, count int64) error {
	starts := make(map[int32]kgo.Offset, partitions)
	for partition := range partitions {
		starts[partition] = kgo.NewOffset().AtStart()
	}
	client, err := connect(bootstrap,
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}))
	if err != nil {
		return err
	}
	defer client.Close()

	out := bufio.NewWriterSize(os.Stdout, 1<<20)
	for count > 0 {
		fetches := client.PollFetches(context.Background())
		if err := fetches.Err(); err != nil {
			return err
		}
		for it := fetches.RecordIter(); !it.Done(); count-- {
			r := it.Next()
			fmt.Fprintf(out, "%d\t%d\t%s\t%s\n", r.Partition, r.Offset, r.Key, r.Value)
		}
	}
	return out.Flush()
}

func balancer(strategy string) (kgo.GroupBalancer, error) {
	switch strategy {
	case "range":
		return kgo.RangeBalancer(), nil
	case "sticky":
		return kgo.StickyBalancer(), nil
	case "cooperative-sticky":
		return kgo.CooperativeStickyBalancer(), nil
	default:
		return nil, fmt.Errorf("STRATEGY %s: range, sticky or cooperative-sticky", strategy)
	}
}

// member is a static member where there is an instance. With the strategy consumer the group
// coordinator is to assign, and range where it does not.
func member(bootstrap, topic, group, strategy, instance string) error {
	var further []kgo.Opt
	if strategy == "consumer" {
		strategy, further = "range", append(further, kgo.ServerSideBalancer())
	}
	if instance != "" {
		further = append(further, kgo.InstanceID(instance))
	}
	balance, err := balancer(strategy)
	if err != nil {
		return err
	}
	var lock sync.Mutex
	// Whole lines at once, so that a kill leaves no half of one behind the next.
	say := func(lines []byte) {
		lock.Lock()
		defer lock.Unlock()
		if _, err := os.Stdout.Write(lines); err != nil {
			panic(err)
		}
	}
	// Called before the client asks where to begin.
	assigned := func(_ context.Context, _ *kgo.Client, given map[string][]int32) {
		var numbers []string
		for _, partition := range given[topic] {
			numbers = append(numbers, strconv.Itoa(int(partition)))
		}
		say(fmt.Appendf(nil, "assigned\t%d\t%s\n",
			time.Now().UnixMilli(), strings.Join(numbers, ",")))
	}
	client, err := connect(bootstrap, append(further,
		kgo.ConsumerGroup(group),
		kgo.ConsumeTopics(topic),
		kgo.Balancers(balance),
		kgo.DisableAutoCommit(),
		kgo.BlockRebalanceOnPoll(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(assigned),
		kgo.SessionTimeout(6*time.Second),
		kgo.HeartbeatInterval(200*time.Millisecond),
	)...)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	for ctx.Err() == nil {
		fetches := client.PollRecords(ctx, 200)
		for _, failed := range fetches.Errors() {
			fmt.Fprintln(os.Stderr, failed.Err)
		}
		if records := fetches.Records(); len(records) > 0 {
			deliver(client, records, say)
		}
		client.AllowRebalance()
	}
	client.CloseAllowingRebalance()
	return nil
}

func deliver(client *kgo.Client, records []*kgo.Record, say func([]byte)) {
	var lines []byte
	ends := make(map[int32]int64)
	for _, r := range records {
		lines = fmt.Appendf(lines, "record\t%d\t%d\t%s\n", r.Partition, r.Offset, r.Value)
		ends[r.Partition] = r.Offset + 1
	}
	for partition, end := range ends {
		lines = fmt.Appendf(lines, "commit\t%d\t%d\n", partition, end)
	}
	say(lines)
	ctx, done := context.WithTimeout(context.Background(), 5*time.Second)
	defer done()
	// Who reads on from the last commit reads these again.
	if err := client.CommitRecords(ctx, records...); err != nil {
		fmt.Fprintln(os.Stderr, "commit:", err)
		return
	}
	lines = nil
	for partition, end := range ends {
		lines = fmt.Appendf(lines, "committed\t%d\t%d\t%d\n",
			time.Now().UnixMilli(), partition, end)
	}
	say(lines)
}
