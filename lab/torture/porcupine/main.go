// Checks the histories of a torture run with porcupine, an existing checker of linearizability: is there one order of
// all operations that agrees with when each began and ended, and in which a sale done by one at a time gives the same
// answers?
//
// Usage: porcupine SECONDS PICTURE. Reads one operation a line (JSON), writes one result a line. An item is checked by
// itself, and so is an idempotency key: the answers about one say nothing of another.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/anishathalye/porcupine"
)

// Operation is a line. Times are in microseconds. Kind: "init", "buy", "add", "look" of an
// item; "ask" of a key. Number: the place of the purchase among the orders of the item; Looks: how many looks saw less
// than that, and so came before it.
type Operation struct {
	Item    string `json:"item"`
	Client  int    `json:"client"`
	Call    int64  `json:"call"`
	Return  int64  `json:"return"`
	Kind    string `json:"kind"`
	Units   int    `json:"units"`
	Outcome string `json:"outcome"`
	Order   string `json:"order"`
	Number  int    `json:"number"`
	Looks   int    `json:"looks"`
	Stock   int    `json:"stock"`
	Lucky   int    `json:"lucky"`
	About   string `json:"about"`
}

// State of an item, whose next order has the number Next, after so many Looks; or of a key, with its Settled answer.
type State struct {
	Stock, Lucky, Next, Looks int
	Settled                   string
}

type Result struct {
	Item       string `json:"item"`
	Operations int    `json:"operations"`
	Verdict    string `json:"verdict"`
	First      string `json:"first"`
}

func step(state, input, output any) (bool, any) {
	before, operation := state.(State), input.(Operation)
	after := before
	switch operation.Kind {
	case "init":
		after = State{Stock: operation.Stock}
	case "add":
		after.Stock += operation.Units
	case "look":
		after.Looks++
		return before.Stock == operation.Stock && before.Lucky == operation.Lucky, after
	case "buy":
		switch operation.Outcome {
		case "sold":
			after.Stock -= operation.Units
			after.Lucky += operation.Units
			after.Next++
			return after.Stock >= 0 && operation.Number == before.Next && operation.Looks <= before.Looks, after
		case "sold_out":
			return before.Stock < operation.Units, before
		}
	case "ask": // of a key that has an answer, or may have been settled without one
		said := operation.Outcome + " " + operation.Order
		switch {
		case before.Settled == "":
			after.Settled = said
		case before.Settled != said:
			return false, before
		}
	}
	return true, after
}

func main() {
	seconds, err := strconv.ParseFloat(os.Args[1], 64)
	check(err)
	timeout := time.Duration(seconds * float64(time.Second))
	model := porcupine.Model{
		Init:  func() any { return State{} },
		Step:  step,
		Equal: func(one, other any) bool { return one == other },
		DescribeOperation: func(input, _ any) string {
			return input.(Operation).About
		},
		DescribeState: func(state any) string {
			return fmt.Sprintf("%d left, %d sold %s", state.(State).Stock, state.(State).Lucky, state.(State).Settled)
		},
	}
	items := map[string][]porcupine.Operation{}
	var names []string
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one Operation
		check(json.Unmarshal(lines.Bytes(), &one))
		if items[one.Item] == nil {
			names = append(names, one.Item)
		}
		items[one.Item] = append(items[one.Item],
			porcupine.Operation{ClientId: one.Client, Input: one, Call: one.Call, Output: one, Return: one.Return})
	}
	check(lines.Err())
	out := json.NewEncoder(os.Stdout)
	for _, name := range names {
		history := items[name]
		verdict, info := porcupine.CheckOperationsVerbose(model, history, timeout)
		result := Result{Item: name, Operations: len(history), Verdict: string(verdict)}
		if verdict == porcupine.Illegal {
			// Again without the hint of the looks, which ends a branch early, with fewer operations than possible.
			for number := range history {
				one := history[number].Input.(Operation)
				one.Looks = 0
				history[number].Input = one
			}
			if again, more := porcupine.CheckOperationsVerbose(model, history, timeout); again == porcupine.Illegal {
				info = more
			}
		}
		if verdict != porcupine.Ok {
			result.First = first(history, info)
		}
		if verdict == porcupine.Illegal {
			check(porcupine.VisualizePath(model, info, os.Args[2]))
		}
		check(out.Encode(result))
	}
}

// first is the first operation, by its end, that the longest order that could be found doesn't explain.
func first(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	longest := map[any]bool{}
	for _, partition := range info.PartialLinearizationsOperations() {
		for _, order := range partition {
			if len(order) > len(longest) {
				longest = map[any]bool{}
				for _, operation := range order {
					longest[operation.Input] = true
				}
			}
		}
	}
	var found *porcupine.Operation
	for number, operation := range history {
		if !longest[operation.Input] && (found == nil || operation.Return < found.Return) {
			found = &history[number]
		}
	}
	if found == nil {
		return ""
	}
	return found.Input.(Operation).About
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
