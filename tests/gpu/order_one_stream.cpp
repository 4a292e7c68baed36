// Several threads launch on one stream in an order that the host enforces by turns; a kernel appends its ticket to a
// log on the device. The log must have the tickets in that order, as must the logs of several streams whose launches
// are interleaved. Settings: threads, launches.
#include <condition_variable>
#include <list>
#include <mutex>
#include <thread>

#include "tests/gpu/driver.h"
#include "tests/gpu/images.h"

using namespace gpupool::programs;

namespace {

struct Log {
    CUdeviceptr tickets = 0;
    CUdeviceptr next = 0;
    unsigned capacity = 0;

    explicit Log(unsigned launches) : capacity(launches) {
        DRIVER_OK(cuMemAlloc(&tickets, launches * sizeof(unsigned)));
        DRIVER_OK(cuMemAlloc(&next, sizeof(unsigned)));
        clear();
    }
    ~Log() {
        cuMemFree(tickets);
        cuMemFree(next);
    }
    void clear() {
        DRIVER_OK(cuMemsetD32(tickets, 0xffffffffu, capacity));
        DRIVER_OK(cuMemsetD32(next, 0, 1));
        DRIVER_OK(cuCtxSynchronize());
    }
    void verify(const char* what) {
        std::vector<unsigned> seen(capacity);
        unsigned count = 0;
        DRIVER_OK(cuMemcpyDtoH(seen.data(), tickets, capacity * sizeof(unsigned)));
        DRIVER_OK(cuMemcpyDtoH(&count, next, sizeof count));
        check(count == capacity, "%s: %u of %u launches ran", what, count, capacity);
        unsigned first_wrong = capacity;
        for (unsigned i = capacity; i-- > 0;) {
            first_wrong = seen[i] == i ? first_wrong : i;
        }
        check(first_wrong == capacity, "%s: the log is in order (first difference at %u)", what, first_wrong);
    }
};

// Thread t may launch when turn % threads == t; the order of the turns is the order of the launches.
class Turns {
  public:
    explicit Turns(unsigned threads) : threads_(threads) {}

    template <class Work>
    void take(unsigned thread, unsigned turn, Work work) {
        std::unique_lock<std::mutex> lock(mutex_);
        changed_.wait(lock, [&] { return turn_ == turn && turn_ % threads_ == thread; });
        work();
        turn_ += 1;
        changed_.notify_all();
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    const unsigned threads_;
    unsigned turn_ = 0;
};

void launch_in_turns(const Device& device, CUfunction append, CUstream stream, Log& log, unsigned threads,
                     unsigned turn_launches) {
    Turns turns(threads);
    std::vector<std::thread> workers;
    const unsigned turn_count = (log.capacity + turn_launches - 1) / turn_launches;
    for (unsigned t = 0; t < threads; t++) {
        workers.emplace_back([&, t] {
            device.use();
            for (unsigned turn = t; turn < turn_count; turn += threads) {
                turns.take(t, turn, [&] {
                    for (unsigned i = 0; i < turn_launches; i++) {
                        const unsigned ticket = turn * turn_launches + i;
                        if (ticket < log.capacity) {
                            DRIVER_OK(launch(append, 1, 1, stream, log.tickets, log.capacity, log.next, ticket));
                        }
                    }
                });
            }
        });
    }
    for (std::thread& worker : workers) {
        worker.join();
    }
    DRIVER_OK(cuStreamSynchronize(stream));
}

// Turns over several streams whose order only events on the device enforce; no host thread waits.
void launch_across_streams(const Device& device, CUfunction append, Log& log, unsigned threads) {
    std::vector<CUstream> streams(threads);
    std::vector<CUevent> events(threads);
    for (unsigned t = 0; t < threads; t++) {
        DRIVER_OK(cuStreamCreate(&streams[t], CU_STREAM_NON_BLOCKING));
        DRIVER_OK(cuEventCreate(&events[t], CU_EVENT_DISABLE_TIMING));
    }
    Turns turns(threads);
    std::vector<std::thread> workers;
    for (unsigned t = 0; t < threads; t++) {
        workers.emplace_back([&, t] {
            device.use();
            for (unsigned ticket = t; ticket < log.capacity; ticket += threads) {
                turns.take(t, ticket, [&] {
                    if (ticket > 0) {
                        DRIVER_OK(cuStreamWaitEvent(streams[t], events[(t + threads - 1) % threads], 0));
                    }
                    DRIVER_OK(launch(append, 1, 1, streams[t], log.tickets, log.capacity, log.next, ticket));
                    DRIVER_OK(cuEventRecord(events[t], streams[t]));
                });
            }
        });
    }
    for (std::thread& worker : workers) {
        worker.join();
    }
    DRIVER_OK(cuCtxSynchronize());
    for (unsigned t = 0; t < threads; t++) {
        DRIVER_OK(cuStreamDestroy(streams[t]));
        DRIVER_OK(cuEventDestroy(events[t]));
    }
}

// Fast interleaved launches for several streams: each stream keeps its order, whichever thread issues them, and work
// that depends on all streams runs behind all.
void launch_mixed(CUfunction append, std::list<Log>& logs, unsigned rounds) {
    std::vector<CUstream> streams(logs.size());
    CUevent event = nullptr;
    DRIVER_OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (CUstream& stream : streams) {
        DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    }
    Log& last = logs.back();
    for (unsigned ticket = 0; ticket < rounds; ticket++) {
        std::size_t at = 0;
        for (Log& log : logs) {
            DRIVER_OK(launch(append, 1, 1, streams[at++], log.tickets, log.capacity, log.next, ticket));
        }
        if (ticket % 100 == 99) {  // after the last stream's launch, gives the other streams work that waits for it
            DRIVER_OK(cuEventRecord(event, streams.back()));
            for (std::size_t other = 0; other + 1 < streams.size(); other++) {
                DRIVER_OK(cuStreamWaitEvent(streams[other], event, 0));
            }
        }
    }
    // Behind all of the last stream's launches, so it must read their count.
    unsigned count = 0;
    DRIVER_OK(cuMemcpyDtoHAsync(&count, last.next, sizeof count, streams.back()));
    DRIVER_OK(cuStreamSynchronize(streams.back()));
    check(count == rounds, "mixed: a copy behind %u launches finds %u", rounds, count);
    DRIVER_OK(cuCtxSynchronize());
    for (CUstream stream : streams) {
        DRIVER_OK(cuStreamDestroy(stream));
    }
    DRIVER_OK(cuEventDestroy(event));
}

}  // namespace

int main(int argc, char** argv) {
    Program program("order_one_stream", argc, argv);
    const Device device;
    const Module module(kernels_ptx().data);
    const CUfunction append = module.function("append_ticket");
    const auto threads = static_cast<unsigned>(program.number("threads", 4));
    const auto launches = static_cast<unsigned>(program.number("launches", 10'000));
    Log log(launches);
    CUstream stream = nullptr;
    DRIVER_OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));

    program.section("one_launch_a_turn", [&] {
        log.clear();
        launch_in_turns(device, append, stream, log, threads, 1);
        log.verify("one launch a turn");
    });
    program.section("many_launches_a_turn", [&] {
        log.clear();
        launch_in_turns(device, append, stream, log, threads, 37);
        log.verify("37 launches a turn");
    });
    program.section("legacy_stream", [&] {
        Log few(launches / 10);
        launch_in_turns(device, append, nullptr, few, threads, 1);
        few.verify("legacy stream");
    });
    program.section("several_streams", [&] {
        Log few(launches / 10);
        launch_across_streams(device, append, few, threads);
        few.verify("several streams, ordered by events");
    });
    program.section("mixed_streams", [&] {
        std::list<Log> logs;
        for (unsigned t = 0; t < threads; t++) {
            logs.emplace_back(launches / threads);
        }
        launch_mixed(append, logs, launches / threads);
        for (Log& own : logs) {
            own.verify("mixed streams");
        }
    });
    DRIVER_OK(cuStreamDestroy(stream));
    return program.finish();
}
