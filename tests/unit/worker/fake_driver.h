// A driver whose GPU the test plays: streams with events and written values on them, which complete when the test says
// so.
//
// Ownership: one at a time; its functions are plain pointers, so the driver is found through a static one. Threads:
// one.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/driver/api.h"

namespace gpupool::test {

class FakeDriver {
  public:
    FakeDriver();
    ~FakeDriver();
    FakeDriver(const FakeDriver&) = delete;
    FakeDriver& operator=(const FakeDriver&) = delete;

    driver::Api api;

    // All events recorded and values written on `stream` so far are complete.
    void complete(CUstream stream);
    // Only the `count` oldest of those that are not.
    void complete(CUstream stream, std::size_t count);
    [[nodiscard]] std::size_t records_on(CUstream stream) const;
    [[nodiscard]] bool alive(CUevent event) const { return events_.contains(event); }
    [[nodiscard]] std::size_t events() const { return events_.size(); }
    // The test's own event, recorded on `stream`.
    CUevent recorded_event(CUstream stream);

    CUresult query_result =
        CUDA_SUCCESS;  // of an event or stream that is complete; if it is not that, nothing is written
    CUresult record_result = CUDA_SUCCESS;  // of every record and write
    CUcontext current = nullptr;
    std::function<void(CUstream)> before_query;  // of an event on that stream: the GPU goes on meanwhile
    std::size_t stream_queries = 0, event_synchronizations = 0;

    static CUstream stream(std::uintptr_t number) { return reinterpret_cast<CUstream>(number << 8); }

  private:
    struct Event {
        CUstream stream = nullptr;
        std::size_t index = 0;  // of its record in the stream; 0: never recorded
    };
    struct Write {
        std::size_t index = 0;  // as an event's
        CUdeviceptr address = 0;
        cuuint32_t value = 0;
    };
    struct Stream {
        std::size_t records = 0, completed = 0;
        std::vector<Write> writes;
    };
    void write_completed(Stream& stream) const;

    static FakeDriver* self_;
    std::uintptr_t next_ = 0x1000;
    std::map<CUevent, Event> events_;
    std::map<CUstream, Stream> streams_;
};

}  // namespace gpupool::test
