// The metrics of a real server: what they say of tenants and sessions, and that they agree with `gpupool usage`.
#include <array>
#include <span>
#include <string>

#include "protocol/transport/open.h"
#include "tests/e2e/sessions/tenants.h"
#include "tests/support/prometheus_text.h"

namespace gpupool::test {
namespace {

using Labels = PrometheusText::Labels;

// A whole HTTP response.
std::string http_get(const std::string& address, const std::string& target) {
    const auto deadline = transport::Clock::now() + std::chrono::seconds(60);
    const auto endpoint = transport::Endpoint::parse(address);
    auto connection = transport::connect(*endpoint, transport::Choice::tcp, deadline);
    if (!connection) {
        ADD_FAILURE() << connection.error().message;
        return "";
    }
    const std::string request = "GET " + target + " HTTP/1.1\r\nHost: " + address + "\r\nAccept: text/plain\r\n\r\n";
    const transport::ConstBuffer sent[] = {std::as_bytes(std::span(request))};
    EXPECT_TRUE((*connection)->send(sent));
    (*connection)->set_receive_deadline(deadline);
    std::string all;
    std::array<std::byte, 65536> buffer;
    while (const auto received = (*connection)->receive(buffer)) {
        all.append(reinterpret_cast<const char*>(buffer.data()), *received);
    }
    return all;
}

class MetricsTest : public TenantsTest {
  protected:
    std::string metrics_address() const {
        const std::string log = daemon_->log(), mark = "metrics at http://";
        const std::size_t begin = log.rfind(mark);
        EXPECT_NE(begin, std::string::npos) << log;
        const std::size_t end = log.find("/metrics", begin + mark.size());
        return log.substr(begin + mark.size(), end - begin - mark.size());
    }
    PrometheusText metrics() const {
        const std::string response = http_get(metrics_address(), "/metrics");
        EXPECT_TRUE(response.starts_with("HTTP/1.1 200 OK\r\n")) << response;
        const std::size_t begin = response.find("\r\n\r\n");
        PrometheusText text(begin == std::string::npos ? "" : response.substr(begin + 4));
        EXPECT_TRUE(text.problems.empty()) << text.problems.front();
        return text;
    }
};

TEST_F(MetricsTest, FollowTenantsAndSessionsAndAgreeWithUsage) {
    start("metrics = \"127.0.0.1:0\"\n");
    const std::string alice = add("alice"), bob = add("bob");
    const Labels of_alice{{"tenant", "alice"}}, of_bob{{"tenant", "bob"}};
    const PrometheusText before = metrics();
    EXPECT_EQ(before.count("gpupool_session_gpu_seconds_total"), 0U);
    EXPECT_EQ(before.value("gpupool_device_memory_used_bytes",
                           {{"device", "0"}, {"uuid", status()["devices"][0]["uuid"].get<std::string>()}}),
              0);
    const auto first = hold(alice), second = hold(bob);
    ASSERT_TRUE(eventually([&] {
        const PrometheusText text = metrics();
        return text.sum("gpupool_session_memory_bytes", of_alice) > 0 &&
               text.sum("gpupool_session_memory_bytes", of_bob) > 0 &&
               text.sum("gpupool_session_memory_byte_seconds_total", of_bob) > 0;
    }));
    const PrometheusText running = metrics();
    EXPECT_EQ(running.value("gpupool_tenant_sessions", of_alice), 1);
    EXPECT_EQ(running.value("gpupool_queue_wait_seconds_count"), 2);
    EXPECT_GT(running.sum("gpupool_session_gpu_seconds_total", of_alice), 0);
    EXPECT_EQ(running.sum("gpupool_tenant_memory_bytes"), running.sum("gpupool_session_memory_bytes"));
    EXPECT_EQ(running.sum("gpupool_device_memory_used_bytes"), running.sum("gpupool_session_memory_bytes"));
    EXPECT_EQ(running.value("gpupool_admissions_total", {{"tenant", "bob"}, {"result", "admitted"}}), 1);

    first->end_input();
    EXPECT_TRUE(first->succeeds());
    ASSERT_TRUE(eventually([&] { return status()["sessions"].size() == 1; }));
    output({"session", "kill", status()["sessions"][0]["id"]});
    EXPECT_NE(run("no-token-of-this-server", "quota_shown", 0)->wait(), 0);
    ASSERT_TRUE(eventually([&] { return metrics().sum("gpupool_tenant_sessions") == 0; }));

    const PrometheusText after = metrics();
    EXPECT_EQ(after.count("gpupool_session_memory_bytes"), 0U) << "ended sessions have no series";
    EXPECT_EQ(after.count("gpupool_session_copied_bytes_total"), 0U);
    EXPECT_EQ(after.value("gpupool_sessions_ended_total", {{"tenant", "alice"}, {"cause", "client_left"}}), 1);
    EXPECT_EQ(after.value("gpupool_sessions_ended_total", {{"tenant", "bob"}, {"cause", "administrator"}}), 1);
    EXPECT_EQ(after.sum("gpupool_sessions_ended_total"), 2);
    EXPECT_EQ(after.value("gpupool_admissions_total", {{"tenant", "(unknown)"}, {"result", "refused"}}), 1);
    for (const auto& [key, value] : running.samples) {
        if (key.first.starts_with("gpupool_tenant_") && key.first.ends_with("_total")) {
            EXPECT_GE(after.value(key.first, key.second).value_or(-1), value) << key.first;
        }
    }
    const auto usage = nlohmann::json::parse(output({"usage", "--json"}))["usage"];
    for (const std::string name : {"alice", "bob"}) {
        const Labels tenant{{"tenant", name}};
        double gpu_seconds = 0, byte_seconds = 0, in = 0;
        for (const auto& row : usage) {
            if (row["tenant"] == name) {
                gpu_seconds += row["gpu_seconds"].get<double>();
                byte_seconds += row["byte_seconds"].get<double>();
                in += row["bytes_in"].get<double>();
            }
        }
        EXPECT_NEAR(*after.value("gpupool_tenant_gpu_seconds_total", tenant), gpu_seconds, 1e-6);
        EXPECT_EQ(*after.value("gpupool_tenant_memory_byte_seconds_total", tenant), byte_seconds);
        EXPECT_EQ(*after.value("gpupool_tenant_copied_bytes_total", {{"tenant", name}, {"direction", "in"}}), in);
        EXPECT_GT(gpu_seconds, 0);
    }
}

TEST_F(MetricsTest, ShowTheQueue) {
    start("metrics = \"127.0.0.1:0\"\n[limits]\nsessions = 1\n");
    const auto first = hold("");
    const auto second = run("", "quota_hold", 0, {"GPUPOOL_WAIT_WHEN_FULL=120s"}, kMiB);
    ASSERT_TRUE(eventually([&] { return metrics().value("gpupool_queue_length") == 1; }));
    first->end_input();
    EXPECT_TRUE(second->says("ready")) << second->errors();
    const PrometheusText text = metrics();
    EXPECT_EQ(text.value("gpupool_queue_length"), 0);
    EXPECT_EQ(text.value("gpupool_queue_wait_seconds_count"), 2);
    EXPECT_GT(*text.value("gpupool_queue_wait_seconds_sum"), 0);
    EXPECT_EQ(text.value("gpupool_tenant_sessions", {{"tenant", "anonymous"}}), 1);
}

TEST(MetricsSetting, WrongOnesAreRefusedAtTheStart) {
    for (const char* wrong : {"9471", "127.0.0.1", "unix:/tmp/metrics", "127.0.0.1:http"}) {
        const ProcessEnd end = run_program({GPUPOOLD, "--listen", "127.0.0.1:0", "--metrics", wrong});
        EXPECT_EQ(WEXITSTATUS(end.status), 2) << wrong;
        EXPECT_NE(end.errors.find("--metrics: "), std::string::npos) << end.errors;
    }
    const TemporaryFolder folder;
    const std::string file = folder.write("gpupoold.toml", "metrics = 9471\n");
    const ProcessEnd end = run_program({GPUPOOLD, "--config", file});
    EXPECT_EQ(WEXITSTATUS(end.status), 2);
    EXPECT_NE(end.errors.find(file + ":1: metrics: "), std::string::npos) << end.errors;
    const Daemon first(session_settings());
    const ProcessEnd taken = run_program({GPUPOOLD, "--listen", "127.0.0.1:0", "--metrics", first.address()});
    EXPECT_EQ(WEXITSTATUS(taken.status), 1);
    EXPECT_NE(taken.errors.find("metrics: cannot listen on " + first.address()), std::string::npos) << taken.errors;
}

}  // namespace
}  // namespace gpupool::test
