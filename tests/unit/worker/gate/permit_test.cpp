// Driver calls that give the GPU work compile only with a permit, which in the worker only the gate gives.
#include <gtest/gtest.h>

#include <type_traits>

#include "server/worker/gate/gate.h"
#include "tests/unit/worker/fake_driver.h"

namespace gpupool::test {
namespace {

template <class Function>
struct Calls;
template <class... Parameters>
struct Calls<CUresult (*)(Parameters...)> {
    template <class Member>
    static constexpr bool directly = std::is_invocable_v<Member, Parameters...>;
    template <class Member>
    static constexpr bool without_permit =
        requires(const Member& member, Parameters... arguments) { driver::call(member, arguments...); };
    template <class Member>
    static constexpr bool with_permit =
        requires(const worker::Submission& submission, const Member& member, Parameters... arguments) {
            driver::call(submission, member, arguments...);
        };
};

template <class Call>
constexpr bool needs_permit() {
    using Member = driver::Pointer<Call>;
    using Of = Calls<typename Call::Function>;
    return !Of::template directly<Member> && !Of::template without_permit<Member> && Of::template with_permit<Member>;
}

TEST(WorkPermit, EveryCallThatGivesWorkNeedsOne) {
    std::size_t count = 0;
#define GP_CALL(op, symbol, ...)                                                       \
    static_assert(!driver::gives_work<calls::symbol> || needs_permit<calls::symbol>(), \
                  #symbol " can be called without a permit");                          \
    count += driver::gives_work<calls::symbol> ? 1 : 0;
#define GP_PER_THREAD(...)
#include "protocol/calls/table.def"
#undef GP_CALL
#undef GP_PER_THREAD
    EXPECT_GT(count, 90U);
}

TEST(WorkPermit, LaunchesCopiesAndMemsetsGiveWork) {
    EXPECT_TRUE(driver::gives_work<calls::cuLaunchKernel>);
    EXPECT_TRUE(driver::gives_work<calls::cuLaunchKernelEx>);
    EXPECT_TRUE(driver::gives_work<calls::cuLaunchCooperativeKernel>);
    EXPECT_TRUE(driver::gives_work<calls::cuGraphLaunch>);
    EXPECT_TRUE(driver::gives_work<calls::cuMemcpyHtoDAsync_v2>);
    EXPECT_TRUE(driver::gives_work<calls::cuMemcpyBatchAsync>);
    EXPECT_TRUE(driver::gives_work<calls::cuMemsetD8Async>);
    EXPECT_TRUE(driver::gives_work<calls::cuMemAllocAsync>);
    EXPECT_TRUE(driver::gives_work<calls::cuLaunchHostFunc>);
    EXPECT_TRUE(driver::gives_work<calls::cuEventRecord>);
    EXPECT_FALSE(driver::gives_work<calls::cuMemAlloc_v2>);
    EXPECT_FALSE(driver::gives_work<calls::cuStreamQuery>);
}

// Only the gate makes submissions, and they cannot be copied.
TEST(WorkPermit, SubmissionsComeFromTheGateAlone) {
    EXPECT_FALSE(
        (std::is_constructible_v<worker::Submission, worker::Scheduler&, worker::StreamState&, std::uint32_t>));
    EXPECT_FALSE((std::is_constructible_v<worker::Submission, worker::StreamState&>));
    EXPECT_FALSE(std::is_default_constructible_v<worker::Submission>);
    EXPECT_FALSE(std::is_copy_constructible_v<worker::Submission>);
    EXPECT_TRUE(std::is_move_constructible_v<worker::Submission>);
    EXPECT_FALSE(std::is_default_constructible_v<driver::WorkPermit>);
    EXPECT_FALSE(std::is_default_constructible_v<driver::OwnWork>);
}

}  // namespace
}  // namespace gpupool::test
