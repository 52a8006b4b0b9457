package main

import (
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// named keeps running clients by name.
type named[T any] struct {
	lock    sync.Mutex
	running map[string]T
	stop    func(T)
}

func newNamed[T any](stop func(T)) *named[T] {
	return &named[T]{running: map[string]T{}, stop: stop}
}

func (all *named[T]) put(command object, client T) {
	all.lock.Lock()
	defer all.lock.Unlock()
	all.running[command.text("name")] = client
}

func (all *named[T]) get(command object) (T, error) {
	all.lock.Lock()
	defer all.lock.Unlock()
	client, found := all.running[command.text("name")]
	if !found {
		return client, fmt.Errorf("nothing is named %s", command.text("name"))
	}
	return client, nil
}

func (all *named[T]) close(name string) bool {
	all.lock.Lock()
	client, found := all.running[name]
	delete(all.running, name)
	all.lock.Unlock()
	if found {
		all.stop(client)
	}
	return found
}

func (all *named[T]) closeAll() {
	all.lock.Lock()
	names := []string{}
	for name := range all.running {
		names = append(names, name)
	}
	all.lock.Unlock()
	for _, name := range names {
		all.close(name)
	}
}

// messagesOf: {body, tags?, keys?, properties?, delay?, fill?} each.
func messagesOf(command object) []*primitive.Message {
	messages := []*primitive.Message{}
	specs, _ := command["messages"].([]interface{})
	for _, each := range specs {
		spec := object(each.(map[string]interface{}))
		body := spec.text("body")
		if fill := spec.number("fill"); fill > 0 {
			body = strings.Repeat(body, fill)
		}
		message := primitive.NewMessage(command.text("topic"), []byte(body))
		if tags := spec.text("tags"); tags != "" {
			message.WithTag(tags)
		}
		if keys := spec.text("keys"); keys != "" {
			message.WithKeys(strings.Fields(keys))
		}
		if delay := spec.number("delay"); delay > 0 {
			message.WithDelayTimeLevel(delay)
		}
		properties, _ := spec["properties"].(map[string]interface{})
		for name, value := range properties {
			message.WithProperty(name, value.(string))
		}
		if _, chosen := command["queue"]; chosen {
			message.WithProperty(queueProperty, fmt.Sprint(command.number("queue")))
		}
		messages = append(messages, message)
	}
	return messages
}

var statusNames = map[primitive.SendStatus]string{
	primitive.SendOK:                "SEND_OK",
	primitive.SendFlushDiskTimeout:  "FLUSH_DISK_TIMEOUT",
	primitive.SendFlushSlaveTimeout: "FLUSH_SLAVE_TIMEOUT",
	primitive.SendSlaveNotAvailable: "SLAVE_NOT_AVAILABLE",
}

func sendResult(result *primitive.SendResult) object {
	return object{
		"status":      statusNames[result.Status],
		"msgId":       result.MsgID,
		"offsetMsgId": result.OffsetMsgID,
		"queueId":     result.MessageQueue.QueueId,
		"broker":      result.MessageQueue.BrokerName,
		"queueOffset": result.QueueOffset,
		"region":      result.RegionID,
		"traceOn":     result.TraceOn,
	}
}

func received(message *primitive.MessageExt) object {
	body := string(message.Body)
	if len(body) > 200 {
		body = body[:200]
	}
	return object{
		"topic":          message.Topic,
		"body":           body,
		"bodyLength":     len(message.Body),
		"tags":           message.GetTags(),
		"keys":           strings.TrimSpace(message.GetKeys()),
		"msgId":          message.MsgId,
		"offsetMsgId":    message.OffsetMsgId,
		"queueId":        message.Queue.QueueId,
		"queueOffset":    message.QueueOffset,
		"reconsumeTimes": message.ReconsumeTimes,
		"bornTimestamp":  message.BornTimestamp,
		"storeTimestamp": message.StoreTimestamp,
		"storeHost":      message.StoreHost,
		"sysFlag":        message.SysFlag,
		"properties":     message.GetProperties(),
		"at":             time.Now().UnixMilli(),
	}
}

// credentials are those with which a client signs; empty if the command names none.
func (o object) credentials() primitive.Credentials {
	return primitive.Credentials{AccessKey: o.text("accessKey"), SecretKey: o.text("secretKey")}
}
