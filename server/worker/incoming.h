// Bulk data on its way from the client: what was asked for, where it goes, what has landed.
//
// A piece is announced with expect() before the client is asked for it, so the receiving thread finds its place;
// anything that was not announced is refused. Over the session's own connection a piece comes in order, in parts of any
// size; over a lane, of which there are several at a time, it comes whole.
//
// Threads: expect() and take_landed() the dispatcher's; place() and landed() the receiving thread's; claim() and
//   landed_whole() the lanes'.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>

namespace gpupool::worker {

class Incoming {
  public:
    struct Piece {
        std::uint64_t offset = 0;
        std::size_t bytes = 0;
        std::byte* place = nullptr;
        std::size_t received_bytes = 0;
        bool claimed = false;  // a lane is about to fill it
    };

    // False when a transfer of that name is under way.
    bool begin(std::uint64_t transfer);
    void expect(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes, std::byte* place);
    // Where these bytes go; empty when nobody asked for them.
    std::span<std::byte> place(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    // The place of a whole piece, which nobody else is given from now on; empty when nobody asked for it.
    std::span<std::byte> claim(std::uint64_t transfer, std::uint64_t offset, std::size_t bytes);
    void landed_whole(std::uint64_t transfer, std::uint64_t offset);
    // The transfer's next piece in order, once all of it is here.
    std::optional<Piece> take_landed(std::uint64_t transfer);
    void forget(std::uint64_t transfer);

  private:
    std::mutex mutex_;
    std::unordered_map<std::uint64_t, std::deque<Piece>> transfers_;
};

}  // namespace gpupool::worker
