// The context that a worker in stock creates before it has a session.
#include <gtest/gtest.h>

#include <chrono>

#include "server/worker/session/prepared.h"
#include "tests/support/event_counter.h"
#include "tests/support/manual_clock.h"
#include "tests/unit/worker/scheduling/launching_session.h"

namespace gpupool::test {
namespace {

const auto kPrepared = reinterpret_cast<CUcontext>(0x500);

int compute_mode = CU_COMPUTEMODE_DEFAULT;
EventCounter created, released;

std::size_t free_bytes = 0;

worker::Prepared& prepared = *new worker::Prepared;  // never destroyed

CUcontext prepared_in(CUcomputemode mode, std::size_t free_percent = 50) {
    compute_mode = mode;
    prepared.context = nullptr;
    prepared.library.api.cuDeviceGetAttribute = [](int* value, CUdevice_attribute, CUdevice) {
        *value = compute_mode;
        return CUDA_SUCCESS;
    };
    prepared.library.api.cuDevicePrimaryCtxRetain = [](CUcontext* context, CUdevice) {
        *context = kPrepared;
        return CUDA_SUCCESS;
    };
    prepared.library.api.cuCtxSetCurrent = [](CUcontext) { return CUDA_SUCCESS; };
    prepared.library.api.cuMemGetInfo_v2 = [](std::size_t* free, std::size_t* total) {
        *free = free_bytes;
        *total = 100;
        return CUDA_SUCCESS;
    };
    prepared.library.api.cuDevicePrimaryCtxRelease_v2 = [](CUdevice) {
        released.add();
        return CUDA_SUCCESS;
    };
    free_bytes = free_percent;
    worker::prepare_context(prepared);
    return prepared.context;
}

TEST(PreparedContext, IsNotMadeInExclusiveProcessMode) {
    EXPECT_EQ(prepared_in(CU_COMPUTEMODE_DEFAULT), kPrepared);
    EXPECT_EQ(prepared_in(CU_COMPUTEMODE_EXCLUSIVE_PROCESS), nullptr);
}

TEST(PreparedContext, IsNotKeptWhenMemoryIsShort) {
    released.reset();
    EXPECT_EQ(prepared_in(CU_COMPUTEMODE_DEFAULT, 13), kPrepared);
    EXPECT_EQ(released.count(), 0u);
    EXPECT_EQ(prepared_in(CU_COMPUTEMODE_DEFAULT, 11), nullptr);
    EXPECT_EQ(released.count(), 1u);
}

TEST(PreparedContext, IsReleasedWhenMemoryBecomesShort) {
    released.reset();
    EXPECT_EQ(prepared_in(CU_COMPUTEMODE_DEFAULT), kPrepared);
    EXPECT_TRUE(worker::keep_context(prepared));
    EXPECT_EQ(released.count(), 0u);
    free_bytes = 11;
    EXPECT_FALSE(worker::keep_context(prepared));
    free_bytes = 50;
    EXPECT_FALSE(worker::keep_context(prepared)) << "it is not created again";
    EXPECT_EQ(released.count(), 1u);
}

TEST(PreparedContext, IsReleasedWhenTheSessionMakesNone) {
    released.reset();
    driver::Library library;
    add_idle_gpu(library.api);
    library.api.cuDevicePrimaryCtxRelease_v2 = [](CUdevice) {
        released.add();
        return CUDA_SUCCESS;
    };
    worker::Worker::Options options;
    options.prepared_context = kPrepared;
    options.prepared_context_timeout = std::chrono::seconds(10);
    ManualClock clock;
    options.clock = &clock;
    LaunchingSession session(std::move(library), 1, std::move(options));
    ASSERT_TRUE(clock.wait_for_wait_until(std::chrono::seconds(10))) << "the dispatcher sleeps until then";
    EXPECT_EQ(released.count(), 0u);
    clock.advance(std::chrono::seconds(10));
    EXPECT_TRUE(released.wait_for(1));
    session.end();
    EXPECT_EQ(released.count(), 1u);
}

// The program creates a context that the prepared one cannot stand for: the worker makes it with `create` and releases
// the prepared context, once.
void create_another(CUresult (*create)(CUcontext*, unsigned, CUdevice)) {
    created.reset();
    released.reset();
    driver::Library library;
    add_idle_gpu(library.api);
    library.api.cuCtxCreate_v2 = create;
    library.api.cuCtxPopCurrent_v2 = [](CUcontext*) { return CUDA_SUCCESS; };
    library.api.cuDevicePrimaryCtxRelease_v2 = [](CUdevice) {
        released.add();
        return CUDA_SUCCESS;
    };
    worker::Worker::Options options;
    options.prepared_context = kPrepared;
    LaunchingSession session(std::move(library), 1, std::move(options));
    FrameOfCommands frame = session.frame();
    session.add_context_creation(frame);
    session.send(frame);
    EXPECT_TRUE(released.wait_for(1));
    EXPECT_TRUE(created.wait_for(1));
    session.end();
    EXPECT_EQ(created.count(), 1u);
    EXPECT_EQ(released.count(), 1u);
}

CUresult create(CUcontext* context, unsigned, CUdevice) {
    *context = reinterpret_cast<CUcontext>(0x600);
    created.add();
    return CUDA_SUCCESS;
}

TEST(PreparedContext, IsReleasedWhenTheFirstContextDiffers) {
    create_another(create);
}

TEST(PreparedContext, IsReleasedWhenAnotherDoesNotFitBesideIt) {
    create_another([](CUcontext* context, unsigned flags, CUdevice device) {
        return released.count() == 0 ? CUDA_ERROR_OUT_OF_MEMORY : create(context, flags, device);
    });
}

}  // namespace
}  // namespace gpupool::test
