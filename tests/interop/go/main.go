// A contender that the tests of tests/interop start: it runs Go's own clients, and obeys a line at a time.
//
//	interop etcd|redsync SERVERS NAME TTL_MS
//
// tests/interop/client.py lists the commands and their answers.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncpool "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
)

const (
	hold       = 2 * time.Millisecond // between reading the counter and writing it
	manyTrials = 1 << 30
)

// A locker is the common interface of the clients' locks; acquire returns the token, or 0 without one.
type locker interface {
	acquire(ctx context.Context) (int64, error)
	release() error
}

// -- etcd: one session for the whole program, as Go's programs have ---------------------------------------------------

type etcdMutex struct{ *concurrency.Mutex }

func (m etcdMutex) acquire(ctx context.Context) (int64, error) {
	if err := m.Lock(ctx); err != nil {
		return 0, err
	}
	return m.Header().Revision, nil
}

func (m etcdMutex) release() error { return m.Unlock(context.Background()) }

func newSession(servers []string, ttl time.Duration) *concurrency.Session {
	client, err := clientv3.New(clientv3.Config{Endpoints: servers, DialTimeout: 5 * time.Second})
	must(err)
	session, err := concurrency.NewSession(client, concurrency.WithTTL(int(ttl.Seconds())))
	must(err)
	return session
}

// -- redsync: its user must extend a lock while it is held ------------------------------------------------------------

type redsyncMutex struct {
	*redsync.Mutex
	ttl      time.Duration
	released chan struct{}
}

func newRedsync(servers []string, name string, ttl time.Duration) *redsyncMutex {
	var pools []redsyncpool.Pool
	for _, server := range servers {
		options, err := redis.ParseURL(server)
		must(err)
		pools = append(pools, goredis.NewPool(redis.NewClient(options)))
	}
	mutex := redsync.New(pools...).NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(manyTrials))
	return &redsyncMutex{Mutex: mutex, ttl: ttl}
}

func (m *redsyncMutex) acquire(ctx context.Context) (int64, error) {
	if err := m.LockContext(ctx); err != nil {
		return 0, err
	}
	m.released = make(chan struct{})
	go func(released chan struct{}) {
		for {
			select {
			case <-released:
				return
			case <-time.After(m.ttl / 3):
				_, _ = m.Extend()
			}
		}
	}(m.released)
	return 0, nil
}

func (m *redsyncMutex) release() error {
	close(m.released)
	ok, err := m.Unlock()
	if err == nil && !ok {
		return errors.New("it was not ours any more")
	}
	return err
}

// -- the protocol ---------------------------------------------------------------------------------------------------------

func main() {
	kind, servers, name := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3]
	ttl := time.Duration(number(os.Args[4])) * time.Millisecond
	var lock locker
	var election *concurrency.Election
	switch kind {
	case "etcd":
		session := newSession(servers, ttl)
		lock, election = etcdMutex{concurrency.NewMutex(session, name)}, concurrency.NewElection(session, name)
	case "redsync":
		lock = newRedsync(servers, name, ttl)
	default:
		must(errors.New("no such kind: " + kind))
	}
	fmt.Println("ready")
	commands := bufio.NewScanner(os.Stdin)
	for commands.Scan() {
		answer, err := do(lock, election, strings.Fields(commands.Text()))
		if err != nil {
			answer = "error " + err.Error()
		}
		fmt.Println(answer)
	}
}

func do(lock locker, election *concurrency.Election, told []string) (string, error) {
	switch told[0] {
	case "acquire":
		ctx, cancel := within(number(told[1]))
		defer cancel()
		token, err := lock.acquire(ctx)
		if err != nil && ctx.Err() != nil {
			return "timeout", nil
		}
		return fmt.Sprintf("granted %d %d", token, time.Now().UnixMicro()), err
	case "release":
		at := time.Now().UnixMicro()
		return fmt.Sprintf("released %d", at), lock.release()
	case "loop":
		rounds := number(told[1])
		for range rounds {
			if err := once(lock, told[3], told[4], told[5]); err != nil {
				return "", err
			}
			time.Sleep(time.Duration(number(told[2])) * time.Millisecond)
		}
		return fmt.Sprintf("looped %d", rounds), nil
	case "race":
		return race(lock, micros(told[1]), micros(told[2]), told[3])
	case "campaign":
		return "elected", election.Campaign(context.Background(), told[1])
	case "resign":
		return "resigned", election.Resign(context.Background())
	}
	return "", errors.New("no such command: " + told[0])
}

// race acquires and releases the lock for so long, and records when it asked for it, got it and released it.
func race(lock locker, length, hold time.Duration, file string) (string, error) {
	var turns strings.Builder
	count := 0
	for end := time.Now().Add(length); time.Now().Before(end); count++ {
		asked := time.Now().UnixMicro()
		if _, err := lock.acquire(context.Background()); err != nil {
			return "", err
		}
		got := time.Now().UnixMicro()
		if hold > 0 {
			time.Sleep(hold)
		}
		fmt.Fprintf(&turns, "%d %d %d\n", asked, got, time.Now().UnixMicro())
		if err := lock.release(); err != nil {
			return "", err
		}
	}
	must(os.WriteFile(file, []byte(turns.String()), 0o644))
	return fmt.Sprintf("raced %d", count), nil
}

// once acquires the lock, notes the entry, reads the counter, pauses, writes one more, notes the exit, and releases.
func once(lock locker, id, counter, journal string) error {
	if _, err := lock.acquire(context.Background()); err != nil {
		return err
	}
	note(journal, "in "+id)
	text, err := os.ReadFile(counter)
	must(err)
	time.Sleep(hold)
	must(os.WriteFile(counter, []byte(strconv.Itoa(number(strings.TrimSpace(string(text)))+1)), 0o644))
	note(journal, "out "+id)
	return lock.release()
}

func note(journal, line string) {
	file, err := os.OpenFile(journal, os.O_APPEND|os.O_WRONLY, 0)
	must(err)
	_, err = file.WriteString(line + "\n")
	must(err)
	must(file.Close())
}

func within(ms int) (context.Context, context.CancelFunc) {
	if ms < 0 {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), time.Duration(ms)*time.Millisecond)
}

func micros(text string) time.Duration { return time.Duration(number(text)) * time.Microsecond }

func number(text string) int {
	value, err := strconv.Atoi(text)
	must(err)
	return value
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
