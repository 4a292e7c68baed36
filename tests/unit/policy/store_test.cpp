// Tenants, tokens, live changes and usage over restarts.
#include "server/policy/store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace gpupool::policy {
namespace {

struct StoreTest : testing::Test {
    StoreTest() {
        std::string made = testing::TempDir() + "/store-XXXXXX";
        folder = ::mkdtemp(made.data());
        path = folder + "/state.db";
    }
    ~StoreTest() override { std::filesystem::remove_all(folder); }

    Store open() {
        auto store = Store::open(path);
        EXPECT_TRUE(store) << store.error().message;
        return std::move(*store);
    }
    static std::optional<Identity> identify(Store& store, const std::string& token, std::int64_t now_ms) {
        auto tokens = store.tokens(now_ms);
        EXPECT_TRUE(tokens);
        return TokenTable(*tokens, true).identify(token, now_ms);
    }

    std::string folder, path;
    const Identity alice{Role::tenant, "alice"}, ops{Role::administrator, "ops"};
};

TEST_F(StoreTest, TokensAreFoundAfterARestartAndKeptAsHashes) {
    std::string token;
    {
        Store store = open();
        const auto issued = store.add(alice, 1);
        ASSERT_TRUE(issued) << issued.error().message;
        token = issued->token;
        ASSERT_TRUE(store.add(ops, 2));
    }
    Store store = open();
    EXPECT_EQ(identify(store, token, 10), alice);
    EXPECT_EQ(identify(store, token + "x", 10), std::nullopt);
    const auto list = store.list(10);
    ASSERT_TRUE(list);
    ASSERT_EQ(list->size(), 2U);
    EXPECT_EQ((*list)[0].identity, alice);
    EXPECT_EQ((*list)[0].tokens.size(), 1U);
    EXPECT_EQ((*list)[0].tokens[0].fingerprint, to_string(hash_token(token)).substr(0, 8));
    EXPECT_EQ((*list)[1].identity, ops);

    for (const auto& file : std::filesystem::directory_iterator(folder)) {
        std::ifstream stream(file.path());
        std::ostringstream text;
        text << stream.rdbuf();
        EXPECT_EQ(text.str().find(token), std::string::npos) << file.path();
        struct stat facts {};
        ASSERT_EQ(::stat(file.path().c_str(), &facts), 0);
        EXPECT_EQ(facts.st_mode & 0077, 0U) << file.path();
    }
}

TEST_F(StoreTest, RotatingEndsTheOldTokensAtOnceOrLater) {
    Store store = open();
    const auto first = store.add(alice, 0);
    const auto second = store.rotate("alice", milliseconds(500), 1000);
    ASSERT_TRUE(first && second);
    EXPECT_EQ(identify(store, first->token, 1499), alice);
    EXPECT_EQ(identify(store, first->token, 1500), std::nullopt);
    EXPECT_EQ(identify(store, second->token, 5000), alice);
    const auto third = store.rotate("alice", milliseconds(0), 1200);
    ASSERT_TRUE(third);
    EXPECT_EQ(identify(store, first->token, 1200), std::nullopt);
    EXPECT_EQ(identify(store, second->token, 1200), std::nullopt);
    EXPECT_EQ(identify(store, third->token, 1200), alice);
    EXPECT_EQ(store.list(1200)->at(0).tokens.size(), 1U);
}

TEST_F(StoreTest, ALaterRotationDoesNotProlongAnEarlierGrace) {
    Store store = open();
    const auto first = store.add(alice, 0);
    ASSERT_TRUE(store.rotate("alice", milliseconds(100), 0));
    ASSERT_TRUE(store.rotate("alice", milliseconds(1000), 50));
    EXPECT_EQ(identify(store, first->token, 100), std::nullopt);
}

TEST_F(StoreTest, TokensAreLimited) {
    Store store = open();
    ASSERT_TRUE(store.add(alice, 0));
    for (std::size_t i = 1; i < kMaxTokensEach; ++i) {
        ASSERT_TRUE(store.rotate("alice", std::chrono::hours(1), 0));
    }
    EXPECT_FALSE(store.rotate("alice", std::chrono::hours(1), 0));
    EXPECT_EQ(store.list(0)->at(0).tokens.size(), kMaxTokensEach);
    EXPECT_EQ(store.list(0)->at(0).tokens.back().ends_ms, std::nullopt);  // the failed rotation changed nothing
    EXPECT_TRUE(store.rotate("alice", milliseconds(0), 0));
}

TEST_F(StoreTest, RevokingEndsOneTokenOrAllAndKeepsTheServerClosed) {
    Store store = open();
    const auto first = store.add(alice, 0);
    const auto second = store.rotate("alice", std::chrono::hours(1), 0);
    EXPECT_FALSE(store.revoke("alice", 77, 0));
    ASSERT_TRUE(store.revoke("alice", first->id, 0));
    EXPECT_EQ(identify(store, first->token, 0), std::nullopt);
    EXPECT_EQ(identify(store, second->token, 0), alice);
    ASSERT_TRUE(store.revoke("alice", std::nullopt, 0));
    EXPECT_EQ(identify(store, second->token, 0), std::nullopt);
    bool any = false;
    ASSERT_TRUE(store.tokens(0, &any));
    EXPECT_TRUE(any);
    EXPECT_TRUE(store.rotate("alice", milliseconds(0), 0));  // it can get another
}

TEST_F(StoreTest, NamesAreUniqueAndChecked) {
    Store store = open();
    ASSERT_TRUE(store.add(alice, 0));
    EXPECT_FALSE(store.add(alice, 0));
    EXPECT_FALSE(store.add({Role::administrator, "alice"}, 0));
    EXPECT_FALSE(store.add({Role::tenant, "anonymous"}, 0));
    EXPECT_FALSE(store.add({Role::tenant, "../x"}, 0));
    EXPECT_FALSE(store.rotate("bob", milliseconds(0), 0));
    EXPECT_FALSE(store.revoke("bob", std::nullopt, 0));
}

TEST_F(StoreTest, LiveChangesAreKeptUntilUnset) {
    const Scope of_alice{Scope::Kind::tenant, "alice"}, all{Scope::Kind::everyone, {}},
        session{Scope::Kind::session, "s1"};
    {
        Store store = open();
        ASSERT_TRUE(store.set_override(of_alice, "gpus", "2", "administrator ops", 1));
        ASSERT_TRUE(store.set_override(of_alice, "gpus", "3", "administrator ops", 2));
        ASSERT_TRUE(store.set_override(all, "memory", "8GiB", "user 0", 3));
        ASSERT_TRUE(store.set_override(session, "priority", "9", "user 0", 4));
    }
    Store store = open();
    EXPECT_EQ(*store.overrides(),
              (Overrides{{all, {{"memory", "8GiB"}}}, {of_alice, {{"gpus", "3"}}}, {session, {{"priority", "9"}}}}));
    ASSERT_TRUE(store.set_override(of_alice, "gpus", std::nullopt, "user 0", 5));
    ASSERT_TRUE(store.forget_session("s1"));
    EXPECT_EQ(*store.overrides(), (Overrides{{all, {{"memory", "8GiB"}}}}));
}

TEST_F(StoreTest, UsageAddsUpOverRestarts) {
    const std::vector<UsageRow> rows{
        {10, "alice", {1, 2, 3, 4, 5}}, {10, "bob", {1, 0, 0, 0, 0}}, {11, "alice", {0, 1, 0, 0, 0}}};
    ASSERT_TRUE(open().add_usage(rows));
    ASSERT_TRUE(open().add_usage(rows));
    Store store = open();
    EXPECT_EQ(*store.usage({}),
              (std::vector<UsageRow>{
                  {10, "alice", {2, 4, 6, 8, 10}}, {10, "bob", {2, 0, 0, 0, 0}}, {11, "alice", {0, 2, 0, 0, 0}}}));
    UsageQuery query;
    query.tenant = "alice";
    query.first_day = 11;
    EXPECT_EQ(store.usage(query)->size(), 1U);
    query.first_day = 0;
    query.last_day = 10;
    EXPECT_EQ(store.usage(query)->size(), 1U);
    query = {};
    query.most_rows = 2;
    EXPECT_EQ(store.usage(query)->size(), 2U);
    ASSERT_TRUE(store.prune_usage(11));
    EXPECT_EQ(store.usage({})->size(), 1U);
}

// A process is killed at any moment while it stores usage. All rows that it had reported as stored are there, and no
// half transaction.
TEST_F(StoreTest, AKilledDaemonLosesNothingThatWasFlushed) {
    (void)open();
    for (int round = 0; round < 5; ++round) {
        const auto rows_before = open().usage({});
        const std::uint64_t before = rows_before->empty() ? 0 : rows_before->at(0).amounts.sessions;
        int progress[2];
        ASSERT_EQ(::pipe(progress), 0);
        const pid_t child = ::fork();
        if (child == 0) {
            ::prctl(PR_SET_PDEATHSIG, SIGKILL);
            auto store = Store::open(path);
            for (;;) {
                const char byte =
                    store && store->add_usage({{1, "alice", {1, 7, 0, 0, 0}}, {2, "alice", {1, 7, 0, 0, 0}}}) ? 'y'
                                                                                                              : 'n';
                if (::write(progress[1], &byte, 1) != 1) {
                    ::_exit(0);
                }
            }
        }
        ::close(progress[1]);
        char byte = 0;
        std::uint64_t stored = 0;
        while (stored < 20 && ::read(progress[0], &byte, 1) == 1) {
            EXPECT_EQ(byte, 'y');
            ++stored;
        }
        ::kill(child, SIGKILL);
        while (::read(progress[0], &byte, 1) == 1) {
            ++stored;
        }
        ::close(progress[0]);
        ::waitpid(child, nullptr, 0);
        const auto rows = open().usage({});
        ASSERT_EQ(rows->size(), 2U);
        EXPECT_EQ(rows->at(0).amounts, rows->at(1).amounts);
        EXPECT_EQ(rows->at(0).amounts.gpu_ms, 7 * rows->at(0).amounts.sessions);
        // At most the transaction that was going on is more than was reported, and none is less.
        EXPECT_GE(rows->at(0).amounts.sessions, before + stored);
        EXPECT_LE(rows->at(0).amounts.sessions, before + stored + 1);
    }
}

TEST_F(StoreTest, RefusesWhatIsNoDatabaseOrALaterOne) {
    std::ofstream(path) << "this is no database, but a text that is long enough to be read as a header of one......"
                           "...........................................................";
    EXPECT_FALSE(Store::open(path));
    std::filesystem::remove(path);
    {
        auto database = Database::open(path);
        ASSERT_TRUE(database);
        ASSERT_TRUE(database->run("PRAGMA user_version = 99"));
    }
    const auto store = Store::open(path);
    ASSERT_FALSE(store);
    EXPECT_NE(store.error().message.find("later version"), std::string::npos);
    EXPECT_FALSE(Store::open(folder + "/missing/state.db"));
}

}  // namespace
}  // namespace gpupool::policy
