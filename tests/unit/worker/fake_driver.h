// A driver whose GPU the test plays: streams with recorded events and written values, which complete when the test says
// so.
//
// Ownership: one instance at a time, since its functions are plain pointers that find it through a static one. Threads:
// one.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/driver/api.h"

namespace gpupool::test {

// For tests that call the driver themselves.
class TestPermit final : public driver::WorkPermit {};

class FakeDriver {
  public:
    FakeDriver();
    ~FakeDriver();
    FakeDriver(const FakeDriver&) = delete;
    FakeDriver& operator=(const FakeDriver&) = delete;

    driver::Api api;

    // Completes all events recorded and values written on `stream` so far.
    void complete(CUstream stream);
    // Completes only the `count` oldest that are pending.
    void complete(CUstream stream, std::size_t count);
    [[nodiscard]] std::size_t records_on(CUstream stream) const;
    [[nodiscard]] bool alive(CUevent event) const { return events_.contains(event); }
    [[nodiscard]] std::size_t events() const { return events_.size(); }
    // A new event of the test, recorded on `stream`.
    CUevent recorded_event(CUstream stream);

    CUresult query_result =
        CUDA_SUCCESS;  // the answer for an event or stream that is complete; unless it is success, no value is written
    CUresult record_result = CUDA_SUCCESS;  // the result of every record and write
    CUcontext current = nullptr;
    std::function<void(CUstream)> before_query;  // called before a query of that stream, or of an event on it, to let
                                                 // the GPU make progress
    std::size_t stream_queries = 0, event_synchronizations = 0;

    static CUstream stream(std::uintptr_t number) { return reinterpret_cast<CUstream>(number << 8); }

  private:
    struct Event {
        CUstream stream = nullptr;
        std::size_t index = 0;  // its place in the stream's order; 0: never recorded
    };
    struct Write {
        std::size_t index = 0;  // its place in the stream's order
        CUdeviceptr address = 0;
        cuuint32_t value = 0;
    };
    struct Stream {
        std::size_t records = 0, completed = 0;
        std::vector<Write> writes;
    };
    void write_completed(Stream& stream) const;

    static FakeDriver* self;
    std::uintptr_t next_ = 0x1000;
    std::map<CUevent, Event> events_;
    std::map<CUstream, Stream> streams_;
};

}  // namespace gpupool::test
