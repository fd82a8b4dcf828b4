// The device plugin of GPUs that are not there, and the page that dcgm-exporter would write of them.
//
//	gpu-plugin --node gpu-1 --gpus 4 --numa 0,0,1,1 --listen 10.77.0.2:9400
//
// GET /metrics is a page as dcgm-exporter 4.8 writes it; whose a GPU is comes from the kubelet's pod-resources API, as there.
// POST /set?index=0&health=Unhealthy&busy=false&DCGM_FI_DEV_ROW_REMAP_FAILURE=1 changes a GPU.
package main

import (
	"context"
	"crypto/sha1"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	plugin "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
)

const (
	resource = "nvidia.com/gpu"
	folder   = "/var/lib/kubelet/device-plugins"
	kubelet  = folder + "/kubelet.sock"
	own      = folder + "/gpu-plugin.sock"
)

type gpu struct {
	uuid, health string
	numa         int64
	busy         bool
	metrics      map[string]float64 // values that differ from those of a healthy GPU
}

type node struct {
	plugin.UnimplementedDevicePluginServer
	name    string
	lock    sync.Mutex
	gpus    []*gpu
	refuses bool          // it gives no Pod a GPU, and says that all are well
	changed chan struct{} // closed at each change
}

func (n *node) GetDevicePluginOptions(context.Context, *plugin.Empty) (*plugin.DevicePluginOptions, error) {
	return &plugin.DevicePluginOptions{}, nil
}

func (n *node) ListAndWatch(_ *plugin.Empty, stream grpc.ServerStreamingServer[plugin.ListAndWatchResponse]) error {
	for {
		n.lock.Lock()
		answer, changed := &plugin.ListAndWatchResponse{}, n.changed
		for _, each := range n.gpus {
			place := &plugin.TopologyInfo{Nodes: []*plugin.NUMANode{{ID: each.numa}}}
			answer.Devices = append(answer.Devices, &plugin.Device{ID: each.uuid, Health: each.health, Topology: place})
		}
		n.lock.Unlock()
		if err := stream.Send(answer); err != nil {
			return err
		}
		select {
		case <-changed:
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (n *node) Allocate(_ context.Context, asked *plugin.AllocateRequest) (*plugin.AllocateResponse, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	if n.refuses {
		return nil, fmt.Errorf("the driver does not answer")
	}
	answer := &plugin.AllocateResponse{}
	for _, each := range asked.ContainerRequests {
		visible := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(each.DevicesIds, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &plugin.ContainerAllocateResponse{Envs: visible})
	}
	return answer, nil
}

// serve registers with the kubelet, and returns when that kubelet has gone: the next one removes our socket.
func (n *node) serve() error {
	os.Remove(own)
	listener, err := net.Listen("unix", own)
	if err != nil {
		return err
	}
	server := grpc.NewServer()
	plugin.RegisterDevicePluginServer(server, n)
	go server.Serve(listener)
	defer server.Stop()
	connection, err := grpc.NewClient("unix://"+kubelet, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	soon, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	before, _ := os.Stat(kubelet)
	request := &plugin.RegisterRequest{Version: plugin.Version, Endpoint: filepath.Base(own), ResourceName: resource}
	if _, err = plugin.NewRegistrationClient(connection).Register(soon, request); err != nil {
		return err
	}
	for {
		time.Sleep(200 * time.Millisecond)
		now, err := os.Stat(kubelet)
		if _, lost := os.Stat(own); err != nil || lost != nil || !os.SameFile(before, now) {
			return fmt.Errorf("the kubelet has been restarted")
		}
	}
}

// holders gives each device's labels of container, namespace and pod. While the kubelet restarts nobody is known.
func holders() map[string]string {
	labels := map[string]string{}
	connection, err := grpc.NewClient("unix:///var/lib/kubelet/pod-resources/kubelet.sock", grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return labels
	}
	defer connection.Close()
	soon, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	found, err := podresources.NewPodResourcesListerClient(connection).List(soon, &podresources.ListPodResourcesRequest{})
	if err != nil {
		log.Print(err)
		return labels
	}
	for _, pod := range found.PodResources {
		for _, container := range pod.Containers {
			for _, devices := range container.Devices {
				for _, id := range devices.DeviceIds {
					labels[id] = fmt.Sprintf(`,container="%s",namespace="%s",pod="%s"`, container.Name, pod.Namespace, pod.Name)
				}
			}
		}
	}
	return labels
}

// The values of an A100 at work, and of one that rests.
var readings = []struct {
	metric     string
	busy, rest float64
}{
	{"DCGM_FI_PROF_GR_ENGINE_ACTIVE", .93, 0}, {"DCGM_FI_DEV_GPU_UTIL", 97, 0}, {"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", .41, 0},
	{"DCGM_FI_PROF_DRAM_ACTIVE", .38, 0}, {"DCGM_FI_DEV_MEM_COPY_UTIL", 44, 0}, {"DCGM_FI_PROF_PCIE_TX_BYTES", 4.1e8, 2e5},
	{"DCGM_FI_PROF_PCIE_RX_BYTES", 3.9e8, 2e5}, {"DCGM_FI_DEV_FB_USED", 61440, 3}, {"DCGM_FI_DEV_FB_FREE", 20480, 81917},
	{"DCGM_FI_DEV_POWER_USAGE", 352, 58}, {"DCGM_FI_DEV_GPU_TEMP", 61, 31}, {"DCGM_FI_DEV_SM_CLOCK", 1410, 210},
	{"DCGM_FI_DEV_XID_ERRORS", 0, 0}, {"DCGM_FI_DEV_ROW_REMAP_FAILURE", 0, 0},
	{"DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", 0, 0}, {"DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", 0, 0},
}

func (n *node) page(w http.ResponseWriter, _ *http.Request) {
	holder := holders()
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, reading := range readings {
		fmt.Fprintf(w, "# HELP %[1]s %[1]s\n# TYPE %[1]s gauge\n", reading.metric)
		for index, each := range n.gpus {
			value := reading.rest
			if holder[each.uuid] != "" && each.busy {
				value = reading.busy
			}
			if set, is := each.metrics[reading.metric]; is {
				value = set
			}
			fmt.Fprintf(w, "%s{gpu=\"%d\",UUID=\"%s\",device=\"nvidia%d\",modelName=\"NVIDIA A100-SXM4-80GB\",Hostname=\"%s\",DCGM_FI_DRIVER_VERSION=\"570.86.15\"%s} %v\n",
				reading.metric, index, each.uuid, index, n.name, holder[each.uuid], value)
		}
	}
}

func (n *node) set(w http.ResponseWriter, asked *http.Request) {
	n.lock.Lock()
	defer n.lock.Unlock()
	values := asked.URL.Query()
	index, err := strconv.Atoi(values.Get("index"))
	if err != nil || index < 0 || index >= len(n.gpus) {
		http.Error(w, "index names no GPU", http.StatusBadRequest)
		return
	}
	each := n.gpus[index]
	for name := range values {
		switch name {
		case "index":
		case "refuses":
			n.refuses = values.Get(name) == "true"
		case "health":
			each.health = values.Get(name)
		case "busy":
			each.busy = values.Get(name) == "true"
		default:
			number, err := strconv.ParseFloat(values.Get(name), 64)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			each.metrics[name] = number
		}
	}
	close(n.changed)
	n.changed = make(chan struct{})
}

func main() {
	name, count := flag.String("node", "", "its name, from which the UUIDs are made"), flag.Int("gpus", 4, "")
	listen, numa := flag.String("listen", "127.0.0.1:9400", ""), flag.String("numa", "0", "NUMA node of each GPU; the last one counts for the rest")
	flag.Parse()
	n := &node{name: *name, changed: make(chan struct{})}
	nodes := strings.Split(*numa, ",")
	for index := range *count {
		place, err := strconv.ParseInt(nodes[min(index, len(nodes)-1)], 10, 64)
		if err != nil {
			log.Fatalf("--numa: %v", err)
		}
		h := sha1.Sum([]byte(fmt.Sprintf("%s/%d", *name, index)))
		uuid := fmt.Sprintf("GPU-%x-%x-%x-%x-%x", h[0:4], h[4:6], h[6:8], h[8:10], h[10:16])
		n.gpus = append(n.gpus, &gpu{uuid: uuid, health: plugin.Healthy, numa: place, busy: true, metrics: map[string]float64{}})
	}
	http.HandleFunc("GET /metrics", n.page)
	http.HandleFunc("POST /set", n.set)
	go func() { log.Fatal(http.ListenAndServe(*listen, nil)) }()
	for {
		log.Print(n.serve())
		time.Sleep(200 * time.Millisecond)
	}
}
