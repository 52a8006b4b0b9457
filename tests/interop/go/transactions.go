package main

import (
	"context"
	"sync"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// transacting is a transactional producer. How a transaction ends is in the message: its property "local" says what the
// local work came to, "check" what a question is answered with; each is commit, rollback or unknown.
type transacting struct {
	producer  rocketmq.TransactionProducer
	answer    string
	lock      sync.Mutex
	questions []object
}

func (one *transacting) ExecuteLocalTransaction(message *primitive.Message) primitive.LocalTransactionState {
	return state(message.GetProperty("local"))
}

func (one *transacting) CheckLocalTransaction(message *primitive.MessageExt) primitive.LocalTransactionState {
	one.lock.Lock()
	defer one.lock.Unlock()
	one.questions = append(one.questions, received(message))
	if one.answer != "" {
		return state(one.answer)
	}
	return state(message.GetProperty("check"))
}

func state(name string) primitive.LocalTransactionState {
	switch name {
	case "commit":
		return primitive.CommitMessageState
	case "rollback":
		return primitive.RollbackMessageState
	default:
		return primitive.UnknowState
	}
}

type transactions struct{ *named[*transacting] }

func newTransactions() *transactions {
	return &transactions{newNamed(func(one *transacting) { _ = one.producer.Shutdown() })}
}

// create: {name, group, nameserver, answer?: what every question is answered with}.
func (all *transactions) create(command object) (object, error) {
	created := &transacting{answer: command.text("answer"), questions: []object{}}
	running, err := rocketmq.NewTransactionProducer(
		created,
		producer.WithNsResolver(primitive.NewPassthroughResolver([]string{command.text("nameserver")})),
		producer.WithGroupName(command.text("group")),
		producer.WithInstanceName(command.text("name")),
	)
	if err != nil {
		return nil, err
	}
	if err := running.Start(); err != nil {
		return nil, err
	}
	created.producer = running
	all.put(command, created)
	return object{}, nil
}

// send: {name, topic, messages}: each in a transaction of its own.
func (all *transactions) send(command object) (object, error) {
	one, err := all.get(command)
	if err != nil {
		return nil, err
	}
	results := []object{}
	for _, message := range messagesOf(command) {
		result, err := one.producer.SendMessageInTransaction(context.Background(), message)
		if err != nil {
			return nil, err
		}
		shown := sendResult(result.SendResult)
		shown["transactionId"] = result.TransactionID
		results = append(results, shown)
	}
	return object{"results": results}, nil
}

// asked: {name}: the messages that this producer was asked about, in the order of the questions.
func (all *transactions) asked(command object) (object, error) {
	one, err := all.get(command)
	if err != nil {
		return nil, err
	}
	one.lock.Lock()
	defer one.lock.Unlock()
	return object{"messages": append([]object{}, one.questions...)}, nil
}
