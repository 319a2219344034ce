// The load of bench/coordinators on Lockgate and on etcd, in one program, so that both have the same clients.
//
//	load lockgate|etcd ADDRESS,… MODE CLIENTS SECONDS TTL_MS [HOLD_MS]
//
// Each client has a connection of its own: to Lockgate a socket, to etcd a clientv3.Client with a session of
// TTL_MS and the library's own Mutex. Modes:
//
//	pairs     each client locks and unlocks a lock of its own
//	shared    the same, with SHARED (Lockgate alone)
//	one       all clients share one lock
//	now       the same without WAIT (Lockgate alone)
//	contend   all want one lock, which is given back at once
//	writer    all share one lock for HOLD_MS, again and again, and one more client wants it alone
//	hold      one client takes the lock "contended" and keeps it as a session lock; "lease" takes it with PX TTL_MS
//	wait      one client waits for it, and says at which time of the clock it has it
//
// It prints "begin" and "end" around what is measured, each with the CPU time in µs that the process has used, and
// then one line of JSON. Anything that is not as it should be ends it with an error.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/etcd/clientv3"
	"go.etcd.io/etcd/clientv3/concurrency"
)

// A client of either system, with one connection. It has one lock at a time.
type client interface {
	lock(name string, shared bool)
	unlock()
	close()
}

type lockgate struct {
	*redis
	name string
	// With a TTL, locks are leases; otherwise they are session locks.
	lease int
	waits bool
}

func newLockgate(address string, lease int, waits bool) *lockgate {
	one := &lockgate{redis: dial(address), lease: lease, waits: waits}
	// The data node is connected before anything is measured.
	if line, _ := one.ask("PING"); line != "+PONG" {
		check(fmt.Errorf("no PONG"))
	}
	return one
}

func (c *lockgate) lock(name string, shared bool) {
	c.name = name
	words := []string{"LOCK", name}
	if shared {
		words = append(words, "SHARED")
	}
	if c.lease > 0 {
		words = append(words, "PX", strconv.Itoa(c.lease))
	}
	if c.waits {
		words = append(words, "WAIT", "60000")
	}
	if reply, _ := c.ask(words...); reply != "*3" {
		check(fmt.Errorf("LOCK %s: %s", name, reply))
	}
}

func (c *lockgate) unlock() {
	if reply, _ := c.ask("UNLOCK", c.name); reply != ":1" {
		check(fmt.Errorf("UNLOCK %s: %s", c.name, reply))
	}
}

func (c *lockgate) close() {
	c.socket.Close()
}

type etcd struct {
	session *concurrency.Session
	mutexes map[string]*concurrency.Mutex
	held    *concurrency.Mutex
}

func newEtcd(endpoints []string, ttl int) *etcd {
	connection, err := clientv3.New(clientv3.Config{Endpoints: endpoints, DialTimeout: 10 * time.Second})
	check(err)
	session, err := concurrency.NewSession(connection, concurrency.WithTTL(ttl/1000))
	check(err)
	return &etcd{session: session, mutexes: map[string]*concurrency.Mutex{}}
}

func (c *etcd) lock(name string, shared bool) {
	if shared {
		check(fmt.Errorf("etcd's client has no shared lock"))
	}
	if c.mutexes[name] == nil {
		c.mutexes[name] = concurrency.NewMutex(c.session, "/locks/"+name)
	}
	c.held = c.mutexes[name]
	check(c.held.Lock(context.Background()))
}

func (c *etcd) unlock() {
	check(c.held.Unlock(context.Background()))
}

// Leaves no lease behind, whose end would cost the servers time later.
func (c *etcd) close() {
	check(c.session.Close())
	c.session.Client().Close()
}

func cpu() int64 {
	var used syscall.Rusage
	check(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	return (used.Utime.Nano() + used.Stime.Nano()) / 1000
}

// What all clients together have seen.
type seen struct {
	Seconds   float64    `json:"seconds"`
	Grants    []int      `json:"grants"`
	Handovers int        `json:"handovers"`
	GapUs     [2]int64   `json:"gap_us"`
	WaitsMs   []float64  `json:"waits_ms"`
	gaps      []int64    // from a release to the grant of another client
	released  time.Time  // when the lock of "contend" was given back last
	last      int        // by whom
	mutex     sync.Mutex // of the fields above, in the modes in which clients share them
}

func main() {
	system, addresses, mode := os.Args[1], strings.Split(os.Args[2], ","), os.Args[3]
	number := func(at int) int {
		if at >= len(os.Args) {
			return 0
		}
		value, err := strconv.Atoi(os.Args[at])
		check(err)
		return value
	}
	clients, ttl, hold := number(4), number(6), time.Duration(number(7))*time.Millisecond
	measured, err := time.ParseDuration(os.Args[5] + "s")
	check(err)
	connect := func() client {
		if system == "etcd" {
			return newEtcd(addresses, ttl)
		}
		if mode == "lease" {
			return newLockgate(addresses[0], ttl, true)
		}
		return newLockgate(addresses[0], 0, mode != "now")
	}
	switch mode {
	case "hold", "lease":
		connect().lock("contended", false)
		fmt.Println("held")
		select {}
	case "wait":
		one := connect()
		fmt.Println("waits")
		one.lock("contended", false)
		fmt.Println("granted", time.Now().UnixNano())
		one.unlock()
		one.close()
		return
	}
	all := make([]client, clients)
	for at := range all {
		all[at] = connect()
	}
	var writer client
	if mode == "writer" {
		writer = connect()
	}
	// Connections are made, buffers grown, and other clients of the round gone before the time begins.
	warm := time.Now().Add(time.Second)
	fmt.Println("connected")
	seen := &seen{Grants: make([]int, clients), last: -1, Seconds: measured.Seconds()}
	var running sync.WaitGroup
	until := warm.Add(measured)
	for at := range all {
		running.Add(1)
		go func(at int) {
			defer running.Done()
			seen.run(all[at], at, mode, hold, warm, until)
		}(at)
	}
	time.Sleep(time.Until(warm))
	fmt.Println("begin", cpu())
	for writer != nil && time.Now().Before(until) {
		time.Sleep(2*hold + 50*time.Millisecond)
		asked := time.Now()
		writer.lock("shared", false)
		seen.WaitsMs = append(seen.WaitsMs, float64(time.Since(asked).Microseconds())/1000)
		writer.unlock()
	}
	time.Sleep(time.Until(until))
	fmt.Println("end", cpu())
	running.Wait()
	sort.Slice(seen.gaps, func(a, b int) bool { return seen.gaps[a] < seen.gaps[b] })
	seen.Handovers = len(seen.gaps)
	for at, share := range []float64{0.5, 0.99} {
		if len(seen.gaps) > 0 {
			seen.GapUs[at] = seen.gaps[int(share*float64(len(seen.gaps)-1))]
		}
	}
	check(json.NewEncoder(os.Stdout).Encode(seen))
	if writer != nil {
		all = append(all, writer)
	}
	for _, one := range all {
		one.close()
	}
}

func (s *seen) run(one client, at int, mode string, hold time.Duration, warm, until time.Time) {
	name := fmt.Sprintf("%s:%d", mode, at)
	switch mode {
	case "contend":
		name = "contended"
	case "one", "now", "writer":
		name = "shared"
	}
	shared := mode == "shared" || name == "shared"
	for {
		now := time.Now()
		if now.After(until) {
			return
		}
		counts := now.After(warm)
		one.lock(name, shared)
		if mode == "contend" {
			s.mutex.Lock()
			if s.last != at && !s.released.IsZero() && counts {
				s.gaps = append(s.gaps, time.Since(s.released).Microseconds())
			}
			s.last, s.released = at, time.Now()
			s.mutex.Unlock()
		}
		if hold > 0 {
			time.Sleep(hold)
		}
		one.unlock()
		if counts {
			s.Grants[at]++
		}
	}
}
