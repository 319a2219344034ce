// The client of bench/lock-set under etcd's lock; lock_set.py is that under the others and says what all of them do.
//
//	lock_set NUMBER SEED TTL_MS DATA_PORT DIRECTORY ENDPOINT…
//
// The lock is the Mutex of etcd's Go client, under a session with a lease of TTL_MS; the set is in Redis.
package main

import (
	"context"
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"strings"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

const key = "set:1"

func main() {
	number, directory := os.Args[1], os.Args[5]
	seed, err := strconv.ParseInt(os.Args[2], 10, 64)
	check(err)
	ttl, err := strconv.Atoi(os.Args[3])
	check(err)
	mine, err := strconv.ParseInt(number, 10, 64)
	check(err)
	chance := rand.New(rand.NewSource(seed*100 + mine))
	data := dial("127.0.0.1:" + os.Args[4])
	etcd, err := clientv3.New(clientv3.Config{
		Endpoints: strings.Split(os.Args[6], ","), DialTimeout: 20 * time.Second,
	})
	check(err)
	acks, err := os.OpenFile(directory+"/acks."+number, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	check(err)
	holder, err := os.OpenFile(directory+"/holder", os.O_WRONLY, 0)
	check(err)
	seconds := func(at time.Time) float64 { return float64(at.UnixMicro()) / 1e6 }
	note := func(what string) { fmt.Fprintf(acks, "%.6f %s\n", seconds(time.Now()), what) }
	var session *concurrency.Session
	for element := 1; ; {
		if _, err := os.Stat(directory + "/end"); err == nil {
			return
		}
		until, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		mutex, err := lock(until, etcd, &session, ttl)
		cancel()
		if err != nil {
			note("no-lock")
			time.Sleep(100 * time.Millisecond)
			continue
		}
		works := 10 * time.Millisecond
		if chance.Float64() < 0.02 {
			works = time.Duration(800+chance.Intn(400)) * time.Millisecond
		}
		now := time.Now()
		line := fmt.Sprintf("%4s %.6f %.6f\n", number, seconds(now), seconds(now.Add(works)))
		_, err = holder.WriteAt([]byte(line), 0)
		check(err)
		_, members := data.ask("GET", key)
		time.Sleep(works)
		name := fmt.Sprintf("%s.%d", number, element)
		element++
		if members != "" {
			members += ","
		}
		if line, _ := data.ask("SET", key, members+name); line == "+OK" {
			note(name)
		} else {
			note("error")
		}
		until, cancel = context.WithTimeout(context.Background(), 2*time.Second)
		if mutex.Unlock(until) != nil {
			note("no-unlock")
			// A key that may still be there would keep everybody out for as long as the session lives.
			session.Orphan()
			session = nil
		}
		cancel()
	}
}

// Takes the lock under the session, or under a new one where that has ended.
func lock(until context.Context, etcd *clientv3.Client, session **concurrency.Session, ttl int) (
	*concurrency.Mutex, error,
) {
	if *session != nil {
		select {
		case <-(*session).Done():
			*session = nil
		default:
		}
	}
	if *session == nil {
		fresh, err := concurrency.NewSession(etcd, concurrency.WithTTL(ttl/1000))
		if err != nil {
			return nil, err
		}
		*session = fresh
	}
	mutex := concurrency.NewMutex(*session, "/locks/"+key)
	err := mutex.Lock(until)
	if err != nil {
		(*session).Orphan()
		*session = nil
	}
	return mutex, err
}
