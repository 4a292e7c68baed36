// A scheduler over a fake driver, one context, and streams that the test creates.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "server/worker/gate/gate.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/worker/fake_driver.h"

namespace gpupool::test {

class SchedulerTest : public testing::Test {
  protected:
    SchedulerTest()
        : word_memory(fake.api, [](const std::function<void()>& run) { run(); }),
          scheduler(
              fake.api, word_memory, [] { return false; }, [] {}, clock),
          gate(scheduler, {[this](const worker::StreamState* stream, const worker::Queue*, bool throttled) {
                               notices.emplace_back(stream == nullptr ? nullptr : stream->client, throttled);
                           },
                           [this] { return closed; }, [this] { return lease; }}) {
        context.driver = reinterpret_cast<CUcontext>(0xc0);
        context.legacy.legacy = true;
        context.legacy.context = &context;
    }

    worker::StreamState& add_stream(std::uintptr_t number, bool blocking = true) {
        auto stream = std::make_unique<worker::StreamState>();
        stream->client = reinterpret_cast<CUstream>(number << 4);
        stream->driver = FakeDriver::stream(number);
        stream->context = &context;
        stream->blocking = blocking;
        worker::StreamState& added = *stream;
        context.streams[added.client] = std::move(stream);
        return added;
    }

    // May work be issued to the stream now?
    bool may_issue(worker::StreamState& stream, std::uint32_t cost = 1) {
        std::optional<worker::Submission> submission = gate.enter(stream, calls::Kind::work, cost);
        if (submission) {
            submission->cancel();
        }
        return submission.has_value();
    }

    // An entry that appends its name to the log when it is issued; it waits while `ready` is false.
    class Step final : public worker::Entry {
      public:
        Step(std::vector<std::string>& log, std::string name, const bool* ready = nullptr)
            : log_(log), name_(std::move(name)), ready_(ready) {}
        worker::Reason advance() override {
            if (ready_ != nullptr && !*ready_) {
                return worker::Reason::data;
            }
            log_.push_back(name_);
            return worker::Reason::none;
        }

      private:
        std::vector<std::string>& log_;
        const std::string name_;
        const bool* const ready_;
    };
    std::unique_ptr<worker::Entry> step(std::string name, const bool* ready = nullptr) {
        return std::make_unique<Step>(log, std::move(name), ready);
    }
    worker::Action note(std::string name) {
        return [this, name](CUresult result) {
            log.push_back(result == CUDA_SUCCESS ? name : name + "!" + std::to_string(result));
        };
    }

    // Polls for longer than the scheduler relies on marks alone before it queries the driver.
    void poll_for_a_while() {
        for (int i = 0; i < 100; ++i) {
            clock.advance(std::chrono::microseconds(20));
            scheduler.poll();
        }
    }

    using Log = std::vector<std::string>;
    bool closed = false, lease = true;
    ManualClock clock;
    FakeDriver fake;
    Log log;
    std::vector<std::pair<CUstream, bool>> notices;
    worker::PinnedMemory word_memory;
    worker::ContextState context;
    worker::Scheduler scheduler;
    worker::Gate gate;
};

}  // namespace gpupool::test
