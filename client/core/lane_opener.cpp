#include "client/core/lane_opener.h"

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <unistd.h>

#include <algorithm>
#include <exception>

#include "common/log.h"
#include "common/quiet_thread.h"
#include "protocol/schema/session.capnp.h"
#include "protocol/transport/open.h"
#include "protocol/wire/handshake_io.h"

namespace gpupool::client {

LaneOpener::LaneOpener(Config config, LaneTicket ticket, std::size_t count, wire::Lanes& lanes)
    : config_(std::move(config)),
      ticket_(std::move(ticket)),
      count_(std::min(count, wire::Lanes::kMostLanes)),
      lanes_(lanes) {
    for (auto& lane : descriptors_) {
        std::fill(lane.begin(), lane.end(), -1);
    }
}

void LaneOpener::close_descriptors() noexcept {
    for (const auto& lane : descriptors_) {
        for (const std::atomic<int>& descriptor : lane) {
            if (const int number = descriptor.load(std::memory_order_relaxed); number >= 0) {
                ::close(number);
            }
        }
    }
}

void LaneOpener::begin() noexcept {
    if (count_ == 0 || asked_.exchange(true)) {
        return;
    }
    try {
        quiet_thread("gpupool-lanes", [this] { open_all(); }).detach();
    } catch (const std::exception& exception) {
        log::warn("no data connections: {}", exception.what());
    }
}

void LaneOpener::open_all() noexcept {
    for (std::size_t index = 0; index < count_; ++index) {
        try {
            if (const Status opened = open(index); !opened) {
                log::warn("{} of {} data connections are open: {}", index, count_, opened.error().message);
                return;
            }
        } catch (const std::exception& exception) {
            log::warn("{} of {} data connections are open: {}", index, count_, exception.what());
            return;
        }
    }
    log::info("{} data connections are open", count_);
}

Status LaneOpener::open(std::size_t index) {
    const auto endpoint = transport::Endpoint::parse(config_.server);
    if (!endpoint) {
        return endpoint.error();
    }
    const auto deadline = transport::Clock::now() + config_.connect_timeout;
    auto connection = transport::connect(*endpoint, config_.transport, deadline);
    if (!connection) {
        return connection.error();
    }
    capnp::MallocMessageBuilder hello;
    fill_lane_hello(hello.initRoot<schema::Hello>(), config_, ticket_, index);
    const kj::Array<capnp::word> words = capnp::messageToFlatArray(hello);
    const Status sent = wire::write_frame(**connection, wire::FrameType::hello,
                                          std::as_bytes(std::span(words.asBytes().begin(), words.asBytes().size())));
    // As for the session itself: what a server that hung up said is still there to read.
    const auto frame = wire::read_frame(**connection, kMaxWelcomeBytes, deadline);
    if (!frame) {
        return sent ? frame.error() : sent.error();
    }
    GPUPOOL_TRY(read_lane_answer(*frame));
    const std::vector<int> descriptors = (*connection)->descriptors();
    GPUPOOL_TRY(lanes_.add(index, std::move(*connection)));
    for (std::size_t i = 0; i < std::min(descriptors.size(), transport::kMostDescriptors); ++i) {
        descriptors_[index][i].store(descriptors[i], std::memory_order_relaxed);  // they stay open from now on
    }
    return {};
}

}  // namespace gpupool::client
