#include "protocol/transport/endpoint.h"

#include <gtest/gtest.h>

namespace gpupool::transport {
namespace {

struct Good {
    const char* text;
    const char* host;
    std::uint16_t port;
    const char* printed;
};

TEST(Endpoint, AcceptsHostsAndPorts) {
    for (const auto& [text, host, port, printed] : {
             Good{"127.0.0.1:9470", "127.0.0.1", 9470, "127.0.0.1:9470"},
             Good{"tcp://gpu-7.example.org:80", "gpu-7.example.org", 80, "gpu-7.example.org:80"},
             Good{"[::1]:9470", "::1", 9470, "[::1]:9470"},
             Good{"tcp://[fe80::1%eth0]:1", "fe80::1%eth0", 1, "[fe80::1%eth0]:1"},
             Good{"localhost:0", "localhost", 0, "localhost:0"},
             Good{"localhost:65535", "localhost", 65535, "localhost:65535"},
         }) {
        const auto endpoint = Endpoint::parse(text);
        ASSERT_TRUE(endpoint.ok()) << text << ": " << endpoint.error().message;
        EXPECT_EQ(endpoint->host, host);
        EXPECT_EQ(endpoint->port, port);
        EXPECT_EQ(endpoint->to_string(), printed);
    }
}

TEST(Endpoint, AcceptsSocketPaths) {
    const auto endpoint = Endpoint::parse("unix:/run/gpupool/gpupool.sock", 9470);
    ASSERT_TRUE(endpoint.ok()) << endpoint.error().message;
    EXPECT_TRUE(endpoint->is_path());
    EXPECT_EQ(endpoint->path, "/run/gpupool/gpupool.sock");
    EXPECT_EQ(endpoint->to_string(), "unix:/run/gpupool/gpupool.sock");
    EXPECT_FALSE(Endpoint::parse("localhost:80")->is_path());
}

TEST(Endpoint, DefaultPort) {
    EXPECT_FALSE(Endpoint::parse("gpu7").ok());
    const auto name = Endpoint::parse("gpu7", 9470);
    ASSERT_TRUE(name.ok());
    EXPECT_EQ(name->port, 9470);
    const auto address = Endpoint::parse("[::1]", 9470);
    ASSERT_TRUE(address.ok());
    EXPECT_EQ(address->port, 9470);
}

TEST(Endpoint, RefusalsGiveAReason) {
    const std::pair<std::string, const char*> cases[] = {
        {"", "empty"},
        {"tcp://", "empty"},
        {"localhost", "port is missing"},
        {":9470", "host is missing"},
        {"localhost:", "port must be"},
        {"localhost:x", "port must be"},
        {"localhost:-1", "port must be"},
        {"localhost:65536", "port must be"},
        {"localhost:80x", "port must be"},
        {"localhost: 80", "port must be"},
        {"::1:9470", "in brackets"},
        {"[::1:9470", "closing ]"},
        {"[::1]9470", "only :PORT"},
        {"[localhost]:80", "not an IPv6"},
        {"[::1%]:80", "not an IPv6"},
        {"udp://localhost:80", "\"udp\""},
        {"unix:", "absolute path"},
        {"unix:gpupool.sock", "absolute path"},
        {"unix:/" + std::string(107, 'a'), "too long for a socket"},
        {std::string("unix:/a\0b", 9), "a NUL"},
        {"local host:80", "invalid character"},
        {std::string("a\0b:80", 6), "invalid character"},
        {std::string(300, 'a') + ":80", "too long"},
        {std::string(10'000, 'a'), "too long"},
    };
    for (const auto& [text, reason] : cases) {
        const auto endpoint = Endpoint::parse(text);
        ASSERT_FALSE(endpoint.ok()) << text;
        EXPECT_EQ(endpoint.error().code, ErrorCode::invalid_input);
        EXPECT_NE(endpoint.error().message.find(reason), std::string::npos) << endpoint.error().message;
    }
}

}  // namespace
}  // namespace gpupool::transport
