// gpupool's own failures, with their cause.
//
// Every function that can fail for a reason of gpupool's own (a socket was closed, a frame was malformed, a file could
// not be read) returns `Result<T>`. The driver's results are `CUresult` and are never put into a Result.
//
// Ownership: values. Threads: as for any value. Errors: `Error::message` is written for a person: what happened and,
// where possible, what to do about it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace gpupool {

enum class ErrorCode {
    invalid_input,   // a peer or a user supplied something malformed
    limit_exceeded,  // well-formed, but larger than accepted
    closed,          // the other side closed the connection, or this side did
    timed_out,
    unavailable,  // no peer could be reached
    unresolved,   // a host name without an address
    refused,      // the other side refused
    unsupported,
    system,  // a system call failed
    internal,
};

struct Error {
    ErrorCode code = ErrorCode::internal;
    std::string message;

    // The same error with a prefix: "context: message".
    [[nodiscard]] Error within(std::string_view context) const;
};

// An Error of code `system` that names the operation and errno's meaning.
Error system_error(std::string_view operation, int errno_value);

template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    explicit operator bool() const noexcept { return ok(); }
    bool ok() const noexcept { return state_.index() == 0; }

    T& value() & { return std::get<0>(state_); }
    const T& value() const& { return std::get<0>(state_); }
    T&& value() && { return std::get<0>(std::move(state_)); }
    T& operator*() & { return value(); }
    const T& operator*() const& { return value(); }
    T&& operator*() && { return std::move(*this).value(); }
    T* operator->() { return &value(); }
    const T* operator->() const { return &value(); }

    const Error& error() const { return std::get<1>(state_); }

  private:
    std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
  public:
    Result() = default;
    Result(Error error) : error_(std::move(error)) {}

    explicit operator bool() const noexcept { return ok(); }
    bool ok() const noexcept { return !error_.has_value(); }
    const Error& error() const { return *error_; }

  private:
    std::optional<Error> error_;
};

using Status = Result<void>;

// Returns the error from the enclosing function if `expression` failed.
#define GPUPOOL_TRY(expression)                                      \
    do {                                                             \
        if (auto gpupool_status_ = (expression); !gpupool_status_) { \
            return gpupool_status_.error();                          \
        }                                                            \
    } while (false)

}  // namespace gpupool
