#include "client/error_text.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <regex>
#include <string>
#include <thread>

namespace gpupool::client::error_text {
namespace {

// Reads cuda.h, so that the test covers every value.
TEST(ErrorText, EveryValueOfTheHeaderHasAName) {
    std::ifstream header(GPUPOOL_CUDA_HEADER);
    ASSERT_TRUE(header);
    const std::regex value(R"(^\s+(CUDA_(SUCCESS|ERROR_\w+))\s*=\s*(\d+))");
    int seen = 0;
    std::smatch match;
    for (std::string line; std::getline(header, line);) {
        if (!std::regex_search(line, match, value)) {
            continue;
        }
        const auto code = static_cast<CUresult>(std::stoi(match[3]));
        ASSERT_NE(name(code), nullptr) << line;
        EXPECT_EQ(match[1].str(), name(code));
        ASSERT_NE(description(code), nullptr) << line;
        EXPECT_STRNE(description(code), "");
        ++seen;
    }
    EXPECT_GE(seen, 100);
}

TEST(ErrorText, UnknownCodesAreNull) {
    for (int code : {9, 998, 4095, 4096, 1 << 30, -1}) {
        EXPECT_EQ(name(static_cast<CUresult>(code)), nullptr) << code;
        EXPECT_EQ(description(static_cast<CUresult>(code)), nullptr) << code;
    }
}

TEST(ErrorText, TakesOnlyKnownCodesFromAPeer) {
    for (const CUresult code : {CUDA_SUCCESS, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_ILLEGAL_ADDRESS,
                                CUDA_ERROR_KEY_ROTATION, CUDA_ERROR_UNKNOWN}) {
        EXPECT_EQ(from_peer(code), code);
    }
    constexpr int kLeast = std::numeric_limits<int>::min(), kMost = std::numeric_limits<int>::max();
    for (const int number : {9, 998, 1000, 1023, 1024, 4095, 4096, 1 << 16, kMost, -1, -999, kLeast}) {
        EXPECT_EQ(from_peer(number), CUDA_ERROR_UNKNOWN) << number;
    }
}

TEST(ErrorText, TakesNewCodesFromTheServer) {
    EXPECT_EQ(from_peer(954), CUDA_ERROR_UNKNOWN);
    EXPECT_TRUE(learn(954, "CUDA_ERROR_OF_THE_DAY_AFTER", ""));
    EXPECT_EQ(static_cast<int>(from_peer(954)), 954);
    // Too high for a CUresult to hold.
    EXPECT_FALSE(learn(1024, "CUDA_ERROR_FROM_AFAR", ""));
    EXPECT_EQ(from_peer(1024), CUDA_ERROR_UNKNOWN);
}

TEST(ErrorText, LearnsTheServersTexts) {
    const char* before = description(CUDA_ERROR_CONTAINED);
    const std::string copy = before;
    EXPECT_TRUE(learn(CUDA_ERROR_CONTAINED, "", "a text of the server"));
    EXPECT_STREQ(description(CUDA_ERROR_CONTAINED), "a text of the server");
    EXPECT_STREQ(name(CUDA_ERROR_CONTAINED), "CUDA_ERROR_CONTAINED");
    EXPECT_EQ(before, copy);  // still readable
    EXPECT_TRUE(learn(950, "CUDA_ERROR_OF_TOMORROW", "newer than we are"));
    EXPECT_STREQ(name(static_cast<CUresult>(950)), "CUDA_ERROR_OF_TOMORROW");
}

TEST(ErrorText, LearnsABoundedNumberOfTexts) {
    EXPECT_FALSE(learn(-1, "A", "B"));
    EXPECT_FALSE(learn(4096, "A", "B"));
    EXPECT_FALSE(learn(951, std::string(513, 'x'), "B"));
    EXPECT_EQ(name(static_cast<CUresult>(951)), nullptr);
    const char* same = name(CUDA_ERROR_TIMEOUT);
    EXPECT_TRUE(learn(CUDA_ERROR_TIMEOUT, same, ""));
    EXPECT_EQ(name(CUDA_ERROR_TIMEOUT), same);
    int learned = 0;
    while (learned < 10000 && learn(952, std::string(500, static_cast<char>('a' + learned % 20)), "")) {
        ++learned;
    }
    EXPECT_GT(learned, 1000);
    EXPECT_LT(learned, 3000);
}

TEST(ErrorText, MayBeReadWhileLearning) {
    std::thread writer([] {
        for (int i = 0; i < 100; ++i) {
            learn(953, i % 2 == 0 ? "EVEN" : "ODD", "");
        }
    });
    for (int i = 0; i < 1000; ++i) {
        const char* text = name(static_cast<CUresult>(953));
        if (text != nullptr) {
            EXPECT_TRUE(std::string_view(text) == "EVEN" || std::string_view(text) == "ODD");
        }
    }
    writer.join();
}

}  // namespace
}  // namespace gpupool::client::error_text
