package main

import (
	"context"
	"sort"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

// pusher is a push consumer and what it was given so far.
type pusher struct {
	client   rocketmq.PushConsumer
	lock     sync.Mutex
	messages []object
}

type pushers struct{ *named[*pusher] }

func newPushers() *pushers {
	return &pushers{newNamed(func(running *pusher) { _ = running.client.Shutdown() })}
}

// create: {name, group, nameserver, topic, expression?, sql?, broadcast?, orderly?, from?, fail?, tries?, delay?,
// accessKey?, secretKey?}.
func (all *pushers) create(command object) (object, error) {
	options := []consumer.Option{
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{command.text("nameserver")})),
		consumer.WithGroupName(command.text("group")),
		consumer.WithInstance(command.text("name")),
		consumer.WithConsumerOrder(command.flag("orderly")),
		consumer.WithSuspendCurrentQueueTimeMillis(100 * time.Millisecond),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	if command.flag("broadcast") {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if tries := command.number("tries"); tries > 0 {
		options = append(options, consumer.WithMaxReconsumeTimes(int32(tries)))
	}
	if keys := command.credentials(); keys.AccessKey != "" {
		options = append(options, consumer.WithCredentials(keys))
	}
	client, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return nil, err
	}
	running := &pusher{client: client}
	expression := command.text("expression")
	if expression == "" {
		expression = "*"
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: expression}
	if sql := command.text("sql"); sql != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: sql}
	}
	err = client.Subscribe(command.text("topic"), selector,
		func(ctx context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			return running.take(ctx, command, messages), nil
		})
	if err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	all.put(command, running)
	return object{}, nil
}

func (running *pusher) take(ctx context.Context, command object, messages []*primitive.MessageExt) consumer.ConsumeResult {
	isRefused := false
	running.lock.Lock()
	for _, message := range messages {
		running.messages = append(running.messages, received(message))
		isRefused = isRefused || int(message.ReconsumeTimes) < command.number("fail")
	}
	running.lock.Unlock()
	if !isRefused {
		return consumer.ConsumeSuccess
	}
	if command.flag("orderly") {
		return consumer.SuspendCurrentQueueAMoment
	}
	if concurrently, found := primitive.GetConcurrentlyCtx(ctx); found {
		concurrently.DelayLevelWhenNextConsume = command.number("delay")
	}
	return consumer.ConsumeRetryLater
}

// received: {name, count, timeout}: what came so far, once there are that many or the time is over.
func (all *pushers) received(command object) (object, error) {
	running, err := all.get(command)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(time.Duration(command.number("timeout")) * time.Millisecond)
	for {
		running.lock.Lock()
		messages := append([]object{}, running.messages...)
		running.lock.Unlock()
		if len(messages) >= command.number("count") || time.Now().After(end) {
			return object{"messages": messages}, nil
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// assigned: {name}: the queues that are this consumer's share now, as topic@broker@queueId.
func (all *pushers) assigned(command object) (object, error) {
	running, err := all.get(command)
	if err != nil {
		return nil, err
	}
	queues := []string{}
	for queue := range running.client.GetOffsetDiffMap() {
		queues = append(queues, strings.TrimSpace(queue))
	}
	sort.Strings(queues)
	return object{"queues": queues}, nil
}

type pullers struct{ *named[rocketmq.PullConsumer] }

func newPullers() *pullers {
	return &pullers{newNamed(func(running rocketmq.PullConsumer) { _ = running.Shutdown() })}
}

// create: {name, group, nameserver, topic}.
func (all *pullers) create(command object) (object, error) {
	client, err := rocketmq.NewPullConsumer(
		consumer.WithNsResolver(primitive.NewPassthroughResolver([]string{command.text("nameserver")})),
		consumer.WithGroupName(command.text("group")),
		consumer.WithInstance(command.text("name")),
	)
	if err != nil {
		return nil, err
	}
	selector := consumer.MessageSelector{Type: consumer.TAG, Expression: "*"}
	if err := client.Subscribe(command.text("topic"), selector); err != nil {
		return nil, err
	}
	if err := client.Start(); err != nil {
		return nil, err
	}
	all.put(command, client)
	return object{}, nil
}

// pull: {name, topic, queue, offset, max}: one pull from a place.
func (all *pullers) pull(command object) (object, error) {
	running, err := all.get(command)
	if err != nil {
		return nil, err
	}
	queue := &primitive.MessageQueue{
		Topic:      command.text("topic"),
		BrokerName: command.text("broker"),
		QueueId:    command.number("queue"),
	}
	result, err := running.PullFrom(context.Background(), queue, int64(command.number("offset")), command.number("max"))
	if err != nil {
		return nil, err
	}
	messages := []object{}
	for _, message := range result.GetMessageExts() {
		messages = append(messages, received(message))
	}
	return object{
		"status":   int(result.Status),
		"next":     result.NextBeginOffset,
		"min":      result.MinOffset,
		"max":      result.MaxOffset,
		"messages": messages,
	}, nil
}
