// A sandbox as arguments of a program. tests/e2e/isolation/ has what it refuses.

#include "server/isolation/sandbox.h"

#include <gtest/gtest.h>

namespace gpupool::test {
namespace {

using isolation::Sandbox;
using isolation::Seccomp;

Result<std::optional<Sandbox>> read(const std::vector<std::string>& words, std::size_t& own) {
    std::vector<const char*> pointers;
    for (const std::string& word : words) {
        pointers.push_back(word.c_str());
    }
    return isolation::find_sandbox(pointers, own);
}

TEST(SandboxArguments, AreReadAsTheyWereWritten) {
    Sandbox sandbox;
    sandbox.user = 2000000001;
    sandbox.seccomp = Seccomp::log;
    sandbox.files = true;
    sandbox.gpus = {0, 12};
    sandbox.readable = {"/a folder/with = and ,", "/b"};
    sandbox.writable = {"/c"};
    std::vector<std::string> words{"gpupool-worker", "--probe", "auto"};
    for (const std::string& word : isolation::arguments_of(sandbox)) {
        words.push_back(word);
    }
    std::size_t own = 0;
    const auto same = read(words, own);
    ASSERT_TRUE(same && *same);
    EXPECT_EQ(own, 3u);
    EXPECT_EQ((*same)->user, sandbox.user);
    EXPECT_EQ((*same)->seccomp, sandbox.seccomp);
    EXPECT_EQ((*same)->files, sandbox.files);
    EXPECT_EQ((*same)->gpus, sandbox.gpus);
    EXPECT_EQ((*same)->readable, sandbox.readable);
    EXPECT_EQ((*same)->writable, sandbox.writable);
}

TEST(SandboxArguments, MayBeAbsent) {
    std::size_t own = 0;
    const auto none = read({"gpupool-worker", "--probe", "auto"}, own);
    ASSERT_TRUE(none);
    EXPECT_FALSE(*none);
    EXPECT_EQ(own, 3u);
}

// A part of a sandbox that is not understood must not be left out.
TEST(SandboxArguments, AreRefusedIfOneIsInvalid) {
    for (const char* item : {"user=0", "user=", "user=root", "user=1x", "seccomp=", "seccomp=maybe", "files=no",
                             "gpu=", "gpu=-1", "read=relative", "write=", "other", ""}) {
        std::size_t own = 0;
        EXPECT_FALSE(read({"gpupool-worker", "--sandbox", "seccomp=enforce", item}, own)) << item;
    }
}

}  // namespace
}  // namespace gpupool::test
