// As much of Redis's protocol as the Go clients of the benchmarks need.
package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
)

// A connection to a Redis server or a proxy.
type redis struct {
	socket  net.Conn
	replies *bufio.Reader
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func dial(address string) *redis {
	socket, err := net.Dial("tcp", address)
	check(err)
	return &redis{socket, bufio.NewReader(socket)}
}

// Returns the first line of the reply and, of a bulk string, the bytes. What an array has is read and left out.
func (c *redis) ask(words ...string) (string, string) {
	out := make([]byte, 0, 128)
	out = append(out, '*')
	out = append(strconv.AppendInt(out, int64(len(words)), 10), "\r\n"...)
	for _, word := range words {
		out = append(out, '$')
		out = append(strconv.AppendInt(out, int64(len(word)), 10), "\r\n"...)
		out = append(append(out, word...), "\r\n"...)
	}
	_, err := c.socket.Write(out)
	check(err)
	return c.reply()
}

func (c *redis) reply() (string, string) {
	line, err := c.replies.ReadString('\n')
	check(err)
	line = strings.TrimSuffix(line, "\r\n")
	length, _ := strconv.Atoi(line[1:])
	switch {
	case line[0] == '*':
		for ; length > 0; length-- {
			c.reply()
		}
	case line[0] == '$' && length >= 0:
		bytes := make([]byte, length+2)
		_, err = io.ReadFull(c.replies, bytes)
		check(err)
		return line, string(bytes[:length])
	}
	return line, ""
}
