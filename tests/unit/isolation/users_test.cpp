// The user ids that workers get.

#include "server/isolation/users.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace gpupool::test {
namespace {

using isolation::UserRange;
using isolation::Users;

constexpr uid_t kUnused = 2000020000;  // no process of the machine has it

TEST(WorkerUsers, RangesAreReadAndOthersRefused) {
    const auto range = isolation::parse_users("2000000000-2000009999");
    ASSERT_TRUE(range);
    EXPECT_EQ(range->first, 2000000000u);
    EXPECT_EQ(range->last, 2000009999u);
    EXPECT_TRUE(isolation::parse_users("7-7"));
    for (const char* text :
         {"", "-", "0-5", "5-4", "1-", "-1", "1-x", "1-4294967294", "1 - 2", "1-2-3", "root-daemon"}) {
        EXPECT_FALSE(isolation::parse_users(text)) << text;
    }
}

TEST(WorkerUsers, AreDifferentUntilReturned) {
    Users users(UserRange{kUnused, kUnused + 2});
    const auto first = users.take(), second = users.take(), third = users.take();
    ASSERT_TRUE(first && second && third);
    EXPECT_NE(*first, *second);
    EXPECT_NE(*second, *third);
    EXPECT_NE(*first, *third);
    EXPECT_FALSE(users.take()) << "none is left";
    users.give_back(*second);
    EXPECT_EQ(users.take(), second);
}

TEST(WorkerUsers, OfAnEarlierServerAreNotGivenOutAgain) {
    Users users(UserRange{kUnused, kUnused + 1});
    users.adopt(kUnused);
    users.adopt(5);  // not of the range
    EXPECT_EQ(users.take(), kUnused + 1);
    EXPECT_FALSE(users.take());
}

TEST(WorkerUsers, WithProcessesAreNotFree) {
    if (::getuid() == 0) {
        Users users(UserRange{0, 0});
        EXPECT_FALSE(users.take()) << "root has processes";
    } else {
        Users users(UserRange{::getuid(), ::getuid()});
        EXPECT_FALSE(users.take());
    }
}

TEST(WorkerUsers, NeedRoot) {
    const auto why = isolation::users_unavailable({kUnused, kUnused});
    if (::geteuid() != 0) {
        ASSERT_TRUE(why);
        EXPECT_NE(why->find("root"), std::string::npos);
    }
}

}  // namespace
}  // namespace gpupool::test
