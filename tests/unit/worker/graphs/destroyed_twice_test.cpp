// A helper destroys an object once, even if the client sends the destruction twice without waiting for a reply.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::test {
namespace {

std::atomic<int> destroyed{0};
std::atomic<bool> may_end{false};

TEST(DestroyedTwice, IsPassedToTheDriverOnce) {
    driver::Library library;
    add_idle_gpu(library.api);
    library.api.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    library.api.cuArrayDestroy = [](CUarray) {
        ++destroyed;
        while (!may_end) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return CUDA_SUCCESS;
    };
    LaunchingSession session(std::move(library), 1, {});
    FrameOfCommands frame = session.frame();
    session.add_array_destruction(frame);
    session.add_array_destruction(frame);
    session.send(frame);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (destroyed == 0 && std::chrono::steady_clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    may_end = true;
    session.end();
    EXPECT_EQ(destroyed, 1);
}

}  // namespace
}  // namespace gpupool::test
