// Commands and LOCK through the proxy by redigo, as ../README.md says.
package main

import (
	"fmt"
	"log"
	"os"
	"reflect"
	"strings"
	"time"

	"github.com/gomodule/redigo/redis"
)

func check(what string, got interface{}, err error, wanted interface{}) {
	if err != nil || !reflect.DeepEqual(got, wanted) {
		log.Fatalf("%s: %.200v, %v instead of %.200v", what, got, err, wanted)
	}
}

func data(connection redis.Conn, name string) {
	for n := 0; n < 1000; n++ {
		connection.Send("INCR", name+":n")
	}
	replies, err := redis.Ints(connection.Do(""))
	check("a pipeline", replies[999], err, 1000)

	connection.Send("MULTI")
	connection.Send("SET", name+":a", "1")
	connection.Send("INCR", name+":a")
	values, err := redis.Values(connection.Do("EXEC"))
	check("MULTI", values, err, []interface{}{"OK", int64(2)})

	pushed, err := redis.Strings(connection.Do("BLPOP", name+":list", 0))
	check("BLPOP", pushed, err, []string{name + ":list", "pushed"})

	large := strings.Repeat("0123456789abcdef", 500_000)
	connection.Do("SET", name+":large", large)
	got, err := redis.String(connection.Do("GET", name+":large"))
	check("a large value", got, err, large)

	bytes := make([]byte, 256)
	for n := range bytes {
		bytes[n] = byte(n)
	}
	key := append([]byte(name), bytes...)
	connection.Do("SET", key, bytes)
	binary, err := redis.Bytes(connection.Do("GET", key))
	check("a binary value", binary, err, bytes)

	subscriber := redis.PubSubConn{Conn: connection}
	subscriber.Subscribe(name)
	check("SUBSCRIBE", subscriber.Receive().(redis.Subscription).Count, nil, 1)
	check("a message", string(subscriber.Receive().(redis.Message).Data), nil, "said")
	subscriber.Unsubscribe()
	check("UNSUBSCRIBE", subscriber.Receive().(redis.Subscription).Count, nil, 0)
	pong, err := redis.String(connection.Do("PING"))
	check("PING", pong, err, "PONG")
}

func outcome(reply interface{}, err error) string {
	if err != nil {
		return "error: " + err.Error()
	}
	if reply == nil {
		return "null"
	}
	return "answered"
}

func main() {
	what, port, name := os.Args[1], os.Args[2], os.Args[3]
	connection, err := redis.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		log.Fatal(err)
	}
	switch what {
	case "data":
		data(connection, name)
	case "loss":
		if _, err := redis.Values(connection.Do("LOCK", name, "token")); err != nil {
			log.Fatal(err)
		}
		fmt.Println("held")
		fmt.Scanln()
		fmt.Println(outcome(connection.Do("GET", name)))
		fmt.Println(outcome(connection.Do("GET", name)))
	case "ask":
		start := time.Now()
		said := outcome(connection.Do("LOCK", name, "asks", "PX", 20_000, "WAIT", os.Args[4]))
		fmt.Printf("%.1f %s\n", time.Since(start).Seconds(), said)
	case "idle":
		connection.Do("PING")
		fmt.Println("ready")
		fmt.Scanln()
		fmt.Println(outcome(connection.Do("PING")))
		fmt.Println(outcome(connection.Do("PING")))
	}
}
