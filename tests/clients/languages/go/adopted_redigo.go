// A lock as programs in Go have it on one Redis, by redigo: SET NX, a watchdog that prolongs it, and a poll.
//
//	adopted_redigo count PORT NAME TIMES    adds one to NAME:count under the lock lock:NAME, TIMES times
//	adopted_redigo hold PORT NAME           takes lock:NAME, says "held", and keeps it until it is killed
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"github.com/gomodule/redigo/redis"
)

var release = redis.NewScript(1, `
if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("DEL", KEYS[1])
else
	return 0
end`)

const prolong = `
if redis.call("GET", KEYS[1]) == ARGV[1] then
	return redis.call("EXPIRE", KEYS[1], ARGV[2])
end
return 0`

type lock struct {
	pool       *redis.Pool
	key, token string
	done       chan struct{}
}

func do(pool *redis.Pool, command string, arguments ...interface{}) (interface{}, error) {
	connection := pool.Get()
	defer connection.Close()
	return connection.Do(command, arguments...)
}

func take(pool *redis.Pool, key string) *lock {
	bytes := make([]byte, 16)
	rand.Read(bytes)
	taken := &lock{pool, key, hex.EncodeToString(bytes), make(chan struct{})}
	for {
		reply, err := redis.String(do(pool, "SET", key, taken.token, "EX", 5, "NX"))
		if err == nil && reply == "OK" {
			break
		}
		if err != nil && err != redis.ErrNil {
			log.Fatal("SET NX: ", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	go taken.watch()
	return taken
}

func (taken *lock) watch() {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-taken.done:
			return
		case <-ticker.C:
			n, err := redis.Int(do(taken.pool, "EVAL", prolong, 1, taken.key, taken.token, 5))
			if n != 1 || err != nil {
				log.Fatal("the watchdog: ", n, err)
			}
		}
	}
}

func (taken *lock) release() {
	close(taken.done)
	connection := taken.pool.Get()
	defer connection.Close()
	if n, err := redis.Int(release.Do(connection, taken.key, taken.token)); n != 1 || err != nil {
		log.Fatal("release: ", n, err)
	}
}

func main() {
	what, port, name := os.Args[1], os.Args[2], os.Args[3]
	pool := &redis.Pool{
		MaxIdle: 4,
		Dial:    func() (redis.Conn, error) { return redis.Dial("tcp", "127.0.0.1:"+port) },
	}
	if what == "hold" {
		take(pool, "lock:"+name)
		fmt.Println("held")
		select {}
	}
	times, _ := strconv.Atoi(os.Args[4])
	for ; times > 0; times-- {
		taken := take(pool, "lock:"+name)
		count, err := redis.Int(do(pool, "GET", name+":count"))
		if err != nil && err != redis.ErrNil {
			log.Fatal("GET: ", err)
		}
		time.Sleep(5 * time.Millisecond)
		if _, err := do(pool, "SET", name+":count", count+1); err != nil {
			log.Fatal("SET: ", err)
		}
		taken.release()
	}
}
