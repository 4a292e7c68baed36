// A helper destroys an object once, even if the client sends the destruction twice without waiting for a reply.
#include <gtest/gtest.h>

#include "tests/support/event_counter.h"
#include "tests/support/waiting.h"
#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::test {
namespace {

EventCounter destroyed, may_end, memset_later;

TEST(DestroyedTwice, IsPassedToTheDriverOnce) {
    for (EventCounter* counter : {&destroyed, &may_end, &memset_later}) {
        counter->reset();
    }
    driver::Library library;
    add_idle_gpu(library.api);
    library.api.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    library.api.cuArrayDestroy = [](CUarray) {
        destroyed.add();
        EXPECT_TRUE(may_end.wait_for(1));
        return CUDA_SUCCESS;
    };
    library.api.cuMemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream) {
        memset_later.add();
        return CUDA_SUCCESS;
    };
    LaunchingSession session(std::move(library), 1, {});
    FrameOfCommands frame = session.frame();
    session.add_array_destruction(frame);
    session.add_array_destruction(frame);
    session.add_memset(frame, 0);
    session.send(frame);
    EXPECT_TRUE(destroyed.wait_for(1));
    EXPECT_TRUE(memset_later.wait_for(1));
    EXPECT_TRUE(wait_until_others_sleep()) << "no helper has more to do";
    EXPECT_EQ(destroyed.count(), 1u);
    may_end.add();
    session.end();
    EXPECT_EQ(destroyed.count(), 1u);
}

}  // namespace
}  // namespace gpupool::test
