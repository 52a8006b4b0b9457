// The unmodified Go client v2 as a driver: one JSON command per loopback connection, one JSON answer, as Driver.java
// speaks. The port is written to the file named by the first argument; the process ends when its parent does.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/apache/rocketmq-client-go/v2/rlog"
)

type object map[string]interface{}

type action func(command object) (object, error)

func main() {
	rlog.SetLogLevel("warn")
	producers, pushers, pullers := newProducers(), newPushers(), newPullers()
	transactions := newTransactions()
	actions := map[string]action{
		"producer":             producers.create,
		"send":                 producers.send,
		"transaction_producer": transactions.create,
		"transaction":          transactions.send,
		"questions":            transactions.asked,
		"push":                 pushers.create,
		"received":             pushers.received,
		"assigned":             pushers.assigned,
		"puller":               pullers.create,
		"pull":                 pullers.pull,
		"close": func(command object) (object, error) {
			name := command.text("name")
			if producers.close(name) || transactions.close(name) || pushers.close(name) || pullers.close(name) {
				return object{}, nil
			}
			return nil, fmt.Errorf("nothing is named %s", name)
		},
		"close_all": func(object) (object, error) {
			pushers.closeAll()
			pullers.closeAll()
			producers.closeAll()
			transactions.closeAll()
			return object{}, nil
		},
	}
	if err := serve(os.Args[1], actions); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(portFile string, actions map[string]action) error {
	go endWithParent()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	port := fmt.Sprint(listener.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(portFile+".new", []byte(port), 0o600); err != nil {
		return err
	}
	if err := os.Rename(portFile+".new", portFile); err != nil {
		return err
	}
	for {
		caller, err := listener.Accept()
		if err != nil {
			return err
		}
		go answer(caller, actions)
	}
}

func answer(caller net.Conn, actions map[string]action) {
	defer caller.Close()
	line, err := bufio.NewReader(caller).ReadBytes('\n')
	if err != nil {
		return
	}
	result := run(line, actions)
	text, err := json.Marshal(result)
	if err != nil {
		text = []byte(`{"error":"Marshal","message":"the answer is no JSON"}`)
	}
	_, _ = caller.Write(append(text, '\n'))
}

func run(line []byte, actions map[string]action) object {
	var command object
	if err := json.Unmarshal(line, &command); err != nil {
		return failure(err)
	}
	do, found := actions[command.text("do")]
	if !found {
		return object{"error": "NoCommand", "message": command.text("do")}
	}
	result, err := do(command)
	if err != nil {
		return failure(err)
	}
	return result
}

func failure(err error) object {
	return object{"error": fmt.Sprintf("%T", err), "message": err.Error()}
}

func endWithParent() {
	parent := os.Getppid()
	for os.Getppid() == parent {
		time.Sleep(time.Second)
	}
	os.Exit(1)
}

func (command object) text(name string) string {
	value, _ := command[name].(string)
	return value
}

func (command object) number(name string) int {
	value, _ := command[name].(float64)
	return int(value)
}

func (command object) flag(name string) bool {
	value, _ := command[name].(bool)
	return value
}
