// What runs in the tests' containers: pid 1 of a sandbox or of a simulated machine, and a program that ends as it is asked to.
//
//	workload pause
//	workload work [--end-seconds 8] [--ignore-term] [--work-seconds 30] [--exit-code 1]
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) < 2 || os.Args[1] == "pause" {
		pause()
		return
	}
	work(os.Args[2:])
}

// pause waits for SIGTERM, and meanwhile collects the processes whose parents have ended, as pid 1 has to.
func pause() {
	asked := make(chan os.Signal, 64)
	signal.Notify(asked, syscall.SIGINT, syscall.SIGTERM, syscall.SIGCHLD)
	for each := range asked {
		if each != syscall.SIGCHLD {
			return
		}
		for {
			if pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err != nil || pid <= 0 {
				break
			}
		}
	}
}

func work(arguments []string) {
	flags := flag.NewFlagSet("work", flag.ExitOnError)
	end := flags.Float64("end-seconds", 0, "how long it goes on after SIGTERM")
	ignore := flags.Bool("ignore-term", false, "go on until SIGKILL")
	lasts := flags.Float64("work-seconds", 0, "end by itself after so long; 0: never")
	code := flags.Int("exit-code", 0, "of its end")
	flags.Parse(arguments)
	fmt.Println("GPUs:", os.Getenv("NVIDIA_VISIBLE_DEVICES"))
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM)
	var over <-chan time.Time
	if *lasts > 0 {
		over = time.After(seconds(*lasts))
	}
	for {
		select {
		case <-over:
			os.Exit(*code)
		case <-asked:
			if !*ignore {
				time.Sleep(seconds(*end))
				os.Exit(*code)
			}
		}
	}
}

func seconds(value float64) time.Duration { return time.Duration(value * float64(time.Second)) }
