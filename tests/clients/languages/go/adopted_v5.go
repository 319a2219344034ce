// A lock as programs in Go have it on one Redis, by redis.v5, which was go-redis in 2016: SetNX, and scripts.
//
//	adopted_v5 count PORT NAME TIMES    adds one to NAME:count under the lock lock:NAME, TIMES times
//	adopted_v5 hold PORT NAME           takes lock:NAME, says "held", and keeps it until it is killed
package main

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"log"
	"os"
	"strconv"
	"time"

	"gopkg.in/redis.v5"
)

var release = redis.NewScript(`
	if redis.call("get", KEYS[1]) == ARGV[1] then
		return redis.call("del", KEYS[1])
	end
	return 0`)

func take(client *redis.Client, key string) string {
	bytes := make([]byte, 16)
	rand.Read(bytes)
	token := hex.EncodeToString(bytes)
	for {
		taken, err := client.SetNX(key, token, 5*time.Second).Result()
		if err != nil {
			log.Fatal("SetNX: ", err)
		}
		if taken {
			return token
		}
		time.Sleep(50 * time.Millisecond)
	}
}

func main() {
	what, port, name := os.Args[1], os.Args[2], os.Args[3]
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
	key := "lock:" + name
	if what == "hold" {
		take(client, key)
		fmt.Println("held")
		select {}
	}
	times, _ := strconv.Atoi(os.Args[4])
	for ; times > 0; times-- {
		token := take(client, key)
		count, err := client.Get(name + ":count").Int64()
		if err != nil && err != redis.Nil {
			log.Fatal("GET: ", err)
		}
		time.Sleep(5 * time.Millisecond)
		if err := client.Set(name+":count", count+1, 0).Err(); err != nil {
			log.Fatal("SET: ", err)
		}
		if n, err := release.Run(client, []string{key}, token).Result(); err != nil || n != int64(1) {
			log.Fatal("release: ", n, err)
		}
	}
}
