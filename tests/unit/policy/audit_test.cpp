// The audit log's lines and their files.
#include "server/policy/audit.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

namespace gpupool::policy {
namespace {

std::string content(const std::string& path) {
    std::ifstream file(path);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

struct AuditTest : testing::Test {
    AuditTest() {
        std::string made = testing::TempDir() + "/audit-XXXXXX";
        folder = ::mkdtemp(made.data());
        path = folder + "/audit.jsonl";
    }
    ~AuditTest() override { std::filesystem::remove_all(folder); }

    std::string folder, path;
};

AuditRecord refused() {
    AuditRecord record;
    record.unix_ms = 1'764'000'000'250;
    record.event = AuditEvent::refused;
    record.by = "tenant alice";
    record.tenant = "alice";
    record.session = "0123456789abcdef";
    record.reason = "no room";
    record.details["gpus"] = "2";
    return record;
}

TEST_F(AuditTest, ALineIsOneObject) {
    EXPECT_EQ(audit_line(refused()),
              R"({"time":"2025-11-24T16:00:00.250Z","event":"refused","by":"tenant alice","tenant":"alice",)"
              R"("session":"0123456789abcdef","reason":"no room","details":{"gpus":"2"}})"
              "\n");
}

TEST_F(AuditTest, ForeignTextsCannotAddLinesOrGrowThem) {
    AuditRecord record = refused();
    record.peer = "a\n{\"event\":\"admitted\"}\xff";
    record.reason = std::string(1u << 20, '"');
    for (int i = 0; i < 1000; ++i) {
        record.details[std::to_string(i)] = std::string(1u << 16, '\\');
    }
    const std::string line = audit_line(record);
    EXPECT_LE(line.size(), kMaxAuditLineBytes);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    EXPECT_EQ(nlohmann::json::parse(line)["peer"], "a?{\"event\":\"admitted\"}?");
}

TEST_F(AuditTest, FilesAreBoundedAndOlderOnesKept) {
    const std::uint64_t bytes = audit_line(refused()).size();
    auto log = AuditLog::open(path, {3 * bytes, 2});
    ASSERT_TRUE(log);
    for (int i = 0; i < 11; ++i) {
        ASSERT_TRUE(log->write(refused()));
    }
    // 3 + 3 + 3 + 2 lines, of which the oldest three are gone
    EXPECT_EQ(content(path).size(), 2 * bytes);
    EXPECT_EQ(content(path + ".1").size(), 3 * bytes);
    EXPECT_EQ(content(path + ".2").size(), 3 * bytes);
    EXPECT_FALSE(std::filesystem::exists(path + ".3"));
    struct stat facts {};
    ASSERT_EQ(::stat(path.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600U);
}

TEST_F(AuditTest, GoesOnAfterARestart) {
    const std::uint64_t bytes = audit_line(refused()).size();
    for (int i = 0; i < 3; ++i) {
        auto log = AuditLog::open(path, {2 * bytes, 1});
        ASSERT_TRUE(log);
        ASSERT_TRUE(log->write(refused()));
    }
    EXPECT_EQ(content(path).size(), bytes);
    EXPECT_EQ(content(path + ".1").size(), 2 * bytes);
}

TEST_F(AuditTest, RefusesWhatIsNoFile) {
    EXPECT_FALSE(AuditLog::open(folder, {}));
    ASSERT_EQ(::symlink("/etc/passwd", path.c_str()), 0);
    EXPECT_FALSE(AuditLog::open(path, {}));
}

}  // namespace
}  // namespace gpupool::policy
