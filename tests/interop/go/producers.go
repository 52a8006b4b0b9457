package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// producers are the running ones, by the name that the test gave them.
type producers struct{ *named[rocketmq.Producer] }

func newProducers() *producers {
	return &producers{newNamed(func(running rocketmq.Producer) { _ = running.Shutdown() })}
}

// create: {name, group, nameserver, accessKey?, secretKey?}.
func (all *producers) create(command object) (object, error) {
	options := []producer.Option{
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{command.text("nameserver")})),
		producer.WithGroupName(command.text("group")),
		producer.WithInstanceName(command.text("name")),
		producer.WithQueueSelector(chooser{producer.NewRoundRobinQueueSelector()}),
	}
	if keys := command.credentials(); keys.AccessKey != "" {
		options = append(options, producer.WithCredentials(keys))
	}
	created, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	if err := created.Start(); err != nil {
		return nil, err
	}
	all.put(command, created)
	return object{}, nil
}

// chooser takes the queue that a message names, or the next in turn.
type chooser struct{ others producer.QueueSelector }

const queueProperty = "driver-queue"

func (c chooser) Select(message *primitive.Message, queues []*primitive.MessageQueue, last string) *primitive.MessageQueue {
	wanted := message.GetProperty(queueProperty)
	for _, queue := range queues {
		if wanted == fmt.Sprint(queue.QueueId) {
			return queue
		}
	}
	return c.others.Select(message, queues, last)
}

// send: {name, topic, messages, how: sync | async | oneway | batch, queue?}.
func (all *producers) send(command object) (object, error) {
	running, err := all.get(command)
	if err != nil {
		return nil, err
	}
	messages := messagesOf(command)
	background := context.Background()
	results := []object{}
	switch command.text("how") {
	case "sync":
		for _, message := range messages {
			result, err := running.SendSync(background, message)
			if err != nil {
				return nil, err
			}
			results = append(results, sendResult(result))
		}
	case "batch":
		result, err := running.SendSync(background, messages...)
		if err != nil {
			return nil, err
		}
		results = append(results, sendResult(result))
	case "oneway":
		for _, message := range messages {
			if err := running.SendOneWay(background, message); err != nil {
				return nil, err
			}
		}
	case "async":
		return sendAsync(running, messages)
	default:
		return nil, fmt.Errorf("how is it to be sent: %s", command.text("how"))
	}
	return object{"results": results}, nil
}

func sendAsync(running rocketmq.Producer, messages []*primitive.Message) (object, error) {
	results := make([]object, len(messages))
	var open sync.WaitGroup
	for i, message := range messages {
		at := i
		open.Add(1)
		err := running.SendAsync(context.Background(), func(_ context.Context, result *primitive.SendResult, err error) {
			defer open.Done()
			if err != nil {
				results[at] = failure(err)
				return
			}
			results[at] = sendResult(result)
		}, message)
		if err != nil {
			return nil, err
		}
	}
	done := make(chan struct{})
	go func() {
		open.Wait()
		close(done)
	}()
	select {
	case <-done:
		return object{"results": results}, nil
	case <-time.After(20 * time.Second):
		return nil, fmt.Errorf("some sends were not answered")
	}
}
