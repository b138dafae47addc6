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
	random := make([]byte, 16)
	rand.Read(random)
	key := fmt.Sprintf("%x", random) // one for each press of the button: every retry has the same
	client := http.Client{Timeout: 15 * time.Second}
	for attempt := range 10 {
		request, err := http.NewRequest("POST", urls[attempt%len(urls)]+"/stock/reduce?buyer=ann", nil)
		if err != nil {
			log.Fatal(err)
		}
		request.Header.Set("Accept", "application/json")
		request.Header.Set("Idempotency-Key", key)
		pause, reason := 1, ""
		if answer, err := client.Do(request); err != nil {
			reason = err.Error() // a time-out, or a lost connection: sold or not, nobody has told us
		} else {
			body, err := io.ReadAll(answer.Body)
			answer.Body.Close()
			switch {
			case err != nil:
				reason = err.Error() // lost in the middle of the answer
			case answer.StatusCode == 200:
				fmt.Println(string(body))
				return
			case answer.StatusCode != 429 && answer.StatusCode != 503:
				log.Fatalf("refused: %s", body) // asking again would not help
			default:
				reason = answer.Status
				if seconds, err := strconv.Atoi(answer.Header.Get("Retry-After")); err == nil {
					pause = seconds
				}
			}
		}
		log.Printf("%s; asking again in %d s", reason, pause)
		time.Sleep(time.Duration(pause) * time.Second)
	}
	log.Fatalf("still not known; ask again with the key %s", key)
}
