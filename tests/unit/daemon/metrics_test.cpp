// The metrics' text, and the endpoint that serves it.
#include "server/daemon/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <memory>
#include <set>
#include <string>

#include "common/unique_fd.h"
#include "protocol/transport/tcp/connection.h"
#include "server/daemon/metrics_endpoint.h"
#include "tests/support/manual_clock.h"
#include "tests/support/prometheus_text.h"

namespace gpupool::test {
namespace {

using daemon::EndCause;
using daemon::EventCounts;
using daemon::http_response;
using daemon::Loop;
using daemon::metrics_text;
using daemon::MetricsEndpoint;
using daemon::MetricsSnapshot;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

MetricsSnapshot two_tenants() {
    MetricsSnapshot snapshot;
    snapshot.version = "1.2";
    snapshot.devices = {{"GPU-a", 1000, 300, 500, 25, 61}, {"GPU-b", 2000, 0, 0, {}, {}}};
    snapshot.sessions = {{"s1", "alice", {{0, 100}}, {1, 1500, 7, 10, 20}}, {"s2", "bob", {{0, 200}, {1, 0}}, {}}};
    snapshot.tenants = {{"alice", {3, 61'500, 70, 100, 200}}, {"bob", {1, 0, 0, 0, 0}}};
    snapshot.events.note_admitted("alice", milliseconds(0));
    snapshot.events.note_admitted("alice", milliseconds(2000));
    snapshot.events.note_refused("bob");
    snapshot.events.note_refused("");
    snapshot.events.note_ended("alice", EndCause::administrator);
    snapshot.queue_length = 4;
    return snapshot;
}

TEST(Metrics, HaveTheirNamesAndLabels) {
    const PrometheusText text(metrics_text(two_tenants()));
    EXPECT_THAT(text.problems, IsEmpty());
    EXPECT_EQ(text.value("gpupool_build_info", {{"version", "1.2"}}), 1);
    EXPECT_EQ(text.value("gpupool_device_memory_bytes", {{"device", "1"}, {"uuid", "GPU-b"}}), 2000);
    const PrometheusText::Labels first{{"device", "0"}, {"uuid", "GPU-a"}};
    EXPECT_EQ(text.value("gpupool_device_memory_used_bytes", first), 300);
    EXPECT_EQ(text.value("gpupool_device_promised_bytes", first), 500);
    EXPECT_EQ(text.value("gpupool_device_utilization_ratio", first), 0.25);
    EXPECT_EQ(text.value("gpupool_device_temperature_celsius", first), 61);
    EXPECT_EQ(text.count("gpupool_device_utilization_ratio"), 1U) << "not for a device whose reading is not known";
    EXPECT_EQ(text.value("gpupool_tenant_sessions", {{"tenant", "alice"}}), 1);
    EXPECT_EQ(text.value("gpupool_tenant_memory_bytes", {{"tenant", "bob"}}), 200);
    EXPECT_EQ(text.value("gpupool_tenant_gpu_seconds_total", {{"tenant", "alice"}}), 61.5);
    EXPECT_EQ(text.value("gpupool_tenant_memory_byte_seconds_total", {{"tenant", "alice"}}), 70);
    EXPECT_EQ(text.value("gpupool_tenant_copied_bytes_total", {{"tenant", "alice"}, {"direction", "in"}}), 100);
    EXPECT_EQ(text.value("gpupool_tenant_copied_bytes_total", {{"tenant", "alice"}, {"direction", "out"}}), 200);
    const PrometheusText::Labels session{{"session", "s1"}, {"tenant", "alice"}};
    EXPECT_EQ(text.value("gpupool_session_gpu_seconds_total", session), 1.5);
    EXPECT_EQ(text.value("gpupool_session_memory_byte_seconds_total", session), 7);
    EXPECT_EQ(text.value("gpupool_session_memory_bytes", {{"session", "s2"}, {"tenant", "bob"}, {"device", "0"}}), 200);
    EXPECT_EQ(text.sum("gpupool_session_copied_bytes_total", {{"direction", "out"}}), 20);
    EXPECT_EQ(text.value("gpupool_queue_length"), 4);
    EXPECT_EQ(text.value("gpupool_queue_wait_seconds_sum"), 2);
    EXPECT_EQ(text.value("gpupool_queue_wait_seconds_bucket", {{"le", "1"}}), 1);
    EXPECT_EQ(text.value("gpupool_queue_wait_seconds_bucket", {{"le", "5"}}), 2);
    EXPECT_EQ(text.value("gpupool_admissions_total", {{"tenant", "alice"}, {"result", "admitted"}}), 2);
    EXPECT_EQ(text.value("gpupool_admissions_total", {{"tenant", "bob"}, {"result", "refused"}}), 1);
    EXPECT_EQ(text.value("gpupool_admissions_total", {{"tenant", "(unknown)"}, {"result", "refused"}}), 1);
    EXPECT_EQ(text.value("gpupool_sessions_ended_total", {{"tenant", "alice"}, {"cause", "administrator"}}), 1);
    EXPECT_EQ(text.value("gpupool_sessions_ended_total", {{"tenant", "alice"}, {"cause", "client_left"}}), 0);
}

TEST(Metrics, OfAnEmptyServerAreComplete) {
    const PrometheusText text(metrics_text({}));
    EXPECT_THAT(text.problems, IsEmpty());
    EXPECT_EQ(text.value("gpupool_queue_wait_seconds_count"), 0);
}

// Prometheus computes with doubles as well: numbers below 2^53 arrive exactly.
TEST(Metrics, LargeCountersAreExact) {
    MetricsSnapshot snapshot;
    snapshot.tenants["a"].bytes_in = (std::uint64_t{1} << 53) - 1;
    const PrometheusText text(metrics_text(snapshot));
    EXPECT_EQ(text.value("gpupool_tenant_copied_bytes_total", {{"tenant", "a"}, {"direction", "in"}}),
              9007199254740991.0);
}

TEST(Metrics, SeriesAreBounded) {
    MetricsSnapshot snapshot;
    for (std::size_t i = 0; i < daemon::kMaxSessionSeries + 5; ++i) {
        snapshot.sessions.push_back({std::to_string(i), "t" + std::to_string(i), {{0, 1}}, {}});
        snapshot.events.note_admitted("t" + std::to_string(i), milliseconds(0));
    }
    const PrometheusText text(metrics_text(snapshot));
    EXPECT_THAT(text.problems, IsEmpty());
    EXPECT_EQ(text.count("gpupool_session_memory_bytes"), daemon::kMaxSessionSeries);
    EXPECT_EQ(text.sum("gpupool_tenant_memory_bytes"), daemon::kMaxSessionSeries + 5);
    EXPECT_EQ(text.count("gpupool_admissions_total"), 2 * (EventCounts::kMaxTenants + 1));
    EXPECT_EQ(text.value("gpupool_admissions_total", {{"tenant", "(others)"}, {"result", "admitted"}}), 5);
}

TEST(Metrics, RequestsGetWhatTheyAskFor) {
    const std::string body = "the metrics\n";
    const auto ask = [&](std::string_view request) {
        return http_response(request, [&]() -> const std::string& { return body; });
    };
    const std::string found = ask("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    EXPECT_THAT(found, StartsWith("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
    EXPECT_THAT(found, HasSubstr("Content-Length: 12\r\n"));
    EXPECT_TRUE(found.ends_with("\r\n\r\nthe metrics\n"));
    EXPECT_TRUE(ask("HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
    EXPECT_THAT(ask("GET /metrics?x=y HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
    EXPECT_THAT(ask("GET /metricsx HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404"));
    EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 405"));
    for (const char* wrong : {"GET\r\n\r\n", "\r\n\r\n", "GET /metrics\r\n\r\n", "GET /metrics FTP/1\r\n\r\n"}) {
        EXPECT_THAT(ask(wrong), StartsWith("HTTP/1.1 400")) << wrong;
    }
}

class MetricsEndpointTest : public ::testing::Test {
  protected:
    UniqueFd connect() {
        int ends[2];
        EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
        auto connection = transport::tcp::adopt(ends[0]);
        EXPECT_TRUE(connection);
        endpoint_.receive(std::move(*connection));
        loop_.poll();
        return UniqueFd(ends[1]);
    }
    void send(const UniqueFd& socket, const std::string& text) {
        EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
        loop_.poll();
    }
    // All that has arrived. `ended`: nothing follows.
    std::string receive(const UniqueFd& socket, bool* ended = nullptr) {
        std::string all;
        char buffer[65536];
        while (true) {
            const auto got = ::recv(socket.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
            if (got <= 0) {
                if (ended != nullptr) {
                    *ended = got == 0;
                }
                return all;
            }
            all.append(buffer, static_cast<std::size_t>(got));
            loop_.poll();
        }
    }

    ManualClock clock_;
    Loop loop_{clock_};
    std::string text_ = "metrics\n";
    int made_ = 0;
    MetricsEndpoint endpoint_{loop_, nullptr, [this] {
                                  ++made_;
                                  return text_;
                              }};
};

TEST_F(MetricsEndpointTest, AnswersARequestThatComesInParts) {
    UniqueFd socket = connect();
    send(socket, "GET /metrics HT");
    EXPECT_EQ(receive(socket), "");
    send(socket, "TP/1.1\r\nHost: x\r\n\r");
    EXPECT_EQ(receive(socket), "");
    send(socket, "\n");
    bool ended = false;
    EXPECT_TRUE(receive(socket, &ended).ends_with("\r\n\r\nmetrics\n"));
    EXPECT_TRUE(ended);
    EXPECT_EQ(endpoint_.connections(), 1U);
    socket.reset();
    loop_.poll();
    EXPECT_EQ(endpoint_.connections(), 0U);
}

TEST_F(MetricsEndpointTest, SendsALargeTextToASlowReader) {
    text_.assign(std::size_t{4} << 20, 'x');
    const UniqueFd socket = connect();
    send(socket, "GET /metrics HTTP/1.1\r\n\r\n");
    bool ended = false;
    std::string all;
    while (!ended) {
        all += receive(socket, &ended);
        loop_.poll();
    }
    EXPECT_TRUE(all.ends_with(text_));
}

TEST_F(MetricsEndpointTest, MakesTheTextAtMostOnceInAWhile) {
    for (int i = 0; i < 10; ++i) {
        const UniqueFd socket = connect();
        send(socket, "GET /metrics HTTP/1.1\r\n\r\n");
    }
    EXPECT_EQ(made_, 1);
    clock_.advance(MetricsEndpoint::kFresh);
    text_ = "later\n";
    const UniqueFd socket = connect();
    send(socket, "GET /metrics HTTP/1.1\r\n\r\n");
    EXPECT_TRUE(receive(socket).ends_with("later\n"));
    EXPECT_EQ(made_, 2);
}

TEST_F(MetricsEndpointTest, LimitsConnectionsTheirTimeAndTheirRequests) {
    std::vector<UniqueFd> silent;
    for (std::size_t i = 0; i < MetricsEndpoint::kMaxConnections; ++i) {
        silent.push_back(connect());
    }
    bool ended = false;
    EXPECT_EQ(receive(connect(), &ended), "");
    EXPECT_TRUE(ended) << "there are enough connections";
    send(silent[0], std::string(MetricsEndpoint::kMaxRequestBytes, 'x'));
    loop_.poll();
    EXPECT_THAT(receive(silent[0]), StartsWith("HTTP/1.1 431"));
    clock_.advance(MetricsEndpoint::kTimeout);
    loop_.poll();
    EXPECT_EQ(endpoint_.connections(), 0U);
    EXPECT_EQ(receive(silent[1], &ended), "");
    EXPECT_TRUE(ended);
}

}  // namespace
}  // namespace gpupool::test
