// Tests which of the application's JIT options are sent, and that the worker's log reaches its buffers.
#include "client/core/images/jit_options.h"

#include <gtest/gtest.h>

#include <string_view>

namespace gpupool::test {
namespace {

using client::give_log;
using client::JitOptions;
using client::take_options;

void* as_value(std::uint64_t number) {
    return reinterpret_cast<void*>(number);
}

// The application's options for both logs, and its buffers.
struct Logs {
    char info[8] = "-------", error[8] = "-------";
    CUjit_option names[4] = {CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES, CU_JIT_ERROR_LOG_BUFFER,
                             CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void* values[4] = {info, as_value(sizeof info), error, as_value(sizeof error)};

    void give(std::string_view log) { give_log(take_options(4, names, values), {log.begin(), log.end()}); }
};

TEST(JitOptions, NumbersAreSentAndPointersAreNot) {
    const char* symbol = "symbol";
    const CUjit_option names[] = {CU_JIT_MAX_REGISTERS, CU_JIT_GLOBAL_SYMBOL_NAMES, CU_JIT_OPTIMIZATION_LEVEL};
    void* values[] = {as_value(32), &symbol, as_value(4)};
    const JitOptions options = take_options(3, names, values);
    EXPECT_EQ(options.names, (std::vector<int>{CU_JIT_MAX_REGISTERS, CU_JIT_OPTIMIZATION_LEVEL}));
    EXPECT_EQ(options.values, (std::vector<std::uint64_t>{32, 4}));
    EXPECT_EQ(options.log_bytes(), 0u);
}

TEST(JitOptions, WithoutArraysAreEmpty) {
    const CUjit_option name = CU_JIT_MAX_REGISTERS;
    EXPECT_TRUE(take_options(1, nullptr, nullptr).names.empty());
    EXPECT_TRUE(take_options(1, &name, nullptr).names.empty());
}

TEST(JitOptions, LogBuffersStayHere) {
    Logs logs;
    const JitOptions options = take_options(4, logs.names, logs.values);
    EXPECT_TRUE(options.names.empty());
    EXPECT_EQ(options.info, logs.info);
    EXPECT_EQ(options.error, logs.error);
    EXPECT_EQ(options.log_bytes(), sizeof logs.info + sizeof logs.error);
}

// The driver reads a size as 32 bits; the program may leave anything in the rest of the value.
TEST(JitOptions, LogSizesHave32BitsAndALimit) {
    Logs logs;
    logs.values[1] = as_value((std::uint64_t{7} << 32) | 8);
    logs.values[3] = as_value(0xffffffff);
    const JitOptions options = take_options(4, logs.names, logs.values);
    EXPECT_EQ(options.info_bytes, 8u);
    EXPECT_EQ(options.log_bytes(), 64u << 10);
}

TEST(JitOptions, LogIsDividedAndItsSizesReported) {
    Logs logs;
    logs.give({"made\0bad\0", 9});
    EXPECT_STREQ(logs.info, "made");
    EXPECT_STREQ(logs.error, "bad");
    EXPECT_EQ(logs.values[1], as_value(4));
    EXPECT_EQ(logs.values[3], as_value(3));
}

TEST(JitOptions, LongLogIsCut) {
    Logs logs;
    logs.give({"information\0error\0", 18});
    EXPECT_STREQ(logs.info, "informa");
    EXPECT_STREQ(logs.error, "error");
    EXPECT_EQ(logs.values[1], as_value(7));
}

// What a hostile or broken server sends.
TEST(JitOptions, LogWithoutItsEndsIsRead) {
    using Text = std::string_view;
    for (const Text log : {Text("abc"), Text("abc\0", 4), Text("\0", 1), Text("\0\0\0", 3)}) {
        Logs logs;
        logs.give(log);
        EXPECT_EQ(Text(logs.info), log.substr(0, log.find('\0')));
        EXPECT_STREQ(logs.error, "");
        EXPECT_EQ(logs.values[3], nullptr);
    }
}

TEST(JitOptions, LogIsNotWrittenWithoutRoom) {
    Logs logs;
    logs.values[1] = logs.values[2] = nullptr;
    logs.give({"made\0bad\0", 9});
    EXPECT_STREQ(logs.info, "-------");
    EXPECT_STREQ(logs.error, "-------");
}

}  // namespace
}  // namespace gpupool::test
