// Commands and LOCK through the proxy by redis.v5, as ../README.md says.
package main

import (
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"time"

	"gopkg.in/redis.v5"
)

func check(what string, got interface{}, err error, wanted interface{}) {
	if err != nil || !reflect.DeepEqual(got, wanted) {
		log.Fatalf("%s: %.200v, %v instead of %.200v", what, got, err, wanted)
	}
}

func data(client *redis.Client, name string) {
	pipeline := client.Pipeline()
	for n := 0; n < 1000; n++ {
		pipeline.Incr(name + ":n")
	}
	replies, err := pipeline.Exec()
	check("a pipeline", replies[999].(*redis.IntCmd).Val(), err, int64(1000))

	transaction := client.TxPipeline()
	transaction.Set(name+":a", "1", 0)
	transaction.Incr(name + ":a")
	replies, err = transaction.Exec()
	check("MULTI", replies[1].(*redis.IntCmd).Val(), err, int64(2))

	pushed, err := client.BLPop(0, name+":list").Result()
	check("BLPOP", pushed, err, []string{name + ":list", "pushed"})

	large := strings.Repeat("0123456789abcdef", 500_000)
	client.Set(name+":large", large, 0)
	got, err := client.Get(name + ":large").Result()
	check("a large value", got, err, large)

	bytes := make([]byte, 256)
	for n := range bytes {
		bytes[n] = byte(n)
	}
	key := name + string(bytes)
	client.Set(key, bytes, 0)
	binary, err := client.Get(key).Bytes()
	check("a binary value", binary, err, bytes)

	subscriber, err := client.Subscribe(name)
	if err != nil {
		log.Fatal(err)
	}
	message, err := subscriber.ReceiveMessage()
	check("a message", message.Payload, err, "said")
	subscriber.Close()
	pong, err := client.Ping().Result()
	check("PING", pong, err, "PONG")
}

func do(client *redis.Client, words ...interface{}) string {
	command := redis.NewCmd(words...)
	err := client.Process(command)
	if err == redis.Nil {
		return "null"
	}
	if err != nil {
		return "error: " + err.Error()
	}
	return "answered"
}

func main() {
	what, port, name := os.Args[1], os.Args[2], os.Args[3]
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port, PoolSize: 1})
	switch what {
	case "data":
		client = redis.NewClient(&redis.Options{Addr: "127.0.0.1:" + port})
		data(client, name)
	case "loss":
		if said := do(client, "LOCK", name, "token"); said != "answered" {
			log.Fatal(said)
		}
		fmt.Println("held")
		fmt.Scanln()
		fmt.Println(do(client, "GET", name))
		fmt.Println(do(client, "GET", name))
	case "ask":
		start := time.Now()
		said := do(client, "LOCK", name, "asks", "PX", 20_000, "WAIT", os.Args[4])
		fmt.Printf("%.1f %s\n", time.Since(start).Seconds(), said)
	case "idle":
		do(client, "PING")
		fmt.Println("ready")
		fmt.Scanln()
		fmt.Println(do(client, "PING"))
		fmt.Println(do(client, "PING"))
	}
}
