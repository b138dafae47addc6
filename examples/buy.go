// Buy one unit once, whatever gets lost on the way: go run buy.go [URL ...]
package main

import (
	"crypto/rand"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strconv"
	"time"
)

func main() {
	urls := os.Args[1:]
	if len(urls) == 0 {
		urls = []string{"http://localhost:8080", "http://localhost:8090"}
	}
	key := rand.Text() // one for each press of the button: every retry has the same
	for attempt := range 10 {
		status, body, retryAfter := ask(urls[attempt%len(urls)]+"/stock/reduce?buyer=ann", key)
		switch status {
		case 200:
			fmt.Println(body)
			return
		case 0, 429, 503: // 0 is a time-out, or a lost connection: we don't know whether it was sold
			seconds, _ := strconv.Atoi(retryAfter)
			pause := time.Duration(max(seconds, 1)) * time.Second
			log.Printf("%d %s; asking again in %.0f s", status, body, pause.Seconds())
			time.Sleep(pause)
		default:
			log.Fatalf("refused: %s", body) // asking again would not help
		}
	}
	log.Fatalf("still not known; ask again with the key %s", key)
}

func ask(url, key string) (status int, body, retryAfter string) {
	request, err := http.NewRequest("POST", url, nil)
	if err != nil {
		log.Fatal(err)
	}
	request.Header = http.Header{"Accept": {"application/json"}, "Idempotency-Key": {key}}
	answer, err := (&http.Client{Timeout: 15 * time.Second}).Do(request)
	if err != nil {
		return 0, err.Error(), ""
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil { // lost in the middle of the answer
		return 0, err.Error(), ""
	}
	return answer.StatusCode, string(text), answer.Header.Get("Retry-After")
}
