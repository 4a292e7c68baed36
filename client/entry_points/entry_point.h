// The symbols of libcuda.so.1, all derived from the call table.
//
// If the client handles a call, its entry point calls the function of the same name in gpupool::client::entry. Other
// calls are sent to the worker as the table says. A refused call returns CUDA_ERROR_NOT_SUPPORTED and is logged once.
// No exception reaches the application.
//
// Included by the files beside it, one for each part of the call table.
#pragma once

#include "client/calls/handlers.h"
#include "client/core/dispatch/driver_log.h"
#include "client/core/dispatch/remote.h"
#include "client/core/dispatch/unsupported.h"
#include "common/log.h"

namespace gpupool::client {

// Traces one call, and notes its failure in the driver log; in gpupool's own log, that it is not supported.
class Entered {
  public:
    explicit Entered(std::uint16_t opcode) noexcept : opcode_(opcode), traced_(opcode) {}
    CUresult end(CUresult result) noexcept {
        traced_.end(result);
        if (result != CUDA_SUCCESS) {
            driver_log::note_failure(opcode_, result);
        }
        if (result == CUDA_ERROR_NOT_SUPPORTED) {
            note_unsupported(opcode_);
        }
        return result;
    }

  private:
    const std::uint16_t opcode_;
    trace::Call traced_;
};

template <class Call, class Body>
CUresult enter(Body body) noexcept {
    Entered entered(Call::kOpcode);
    CUresult result = CUDA_SUCCESS;
    if constexpr (!calls::has_rule(Call::kRules, calls::Rule::before_init)) {
        if (session(result) == nullptr) {
            return entered.end(result);
        }
        // A call that a capture forbids changes something, even if the client answers it.
        constexpr bool kOnlyAsks =
            Call::kDelivery == calls::Delivery::local && !calls::has_rule(Call::kRules, calls::Rule::no_capture);
        if (this_thread().in_host_function && !kOnlyAsks) {
            return entered.end(CUDA_ERROR_NOT_PERMITTED);
        }
    }
    if constexpr (calls::has_rule(Call::kRules, calls::Rule::no_capture)) {
        if (Captures& captures = this_session().captures; captures.any()) {
            result = captures.before_unsafe_call();
            if (result != CUDA_SUCCESS) {
                return entered.end(result);
            }
        }
    }
    if constexpr (Call::kDelivery == calls::Delivery::deferred) {
        this_session().wait_while_set_aside();
    }
    try {
        result = body();
    } catch (const std::bad_alloc&) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } catch (const std::exception& exception) {
        log::error("{}: {}", Call::kName, exception.what());
        result = CUDA_ERROR_UNKNOWN;
    }
    return entered.end(result);
}

template <class Call, class Handled, class... Arguments>
CUresult route(Handled handled, Arguments... arguments) noexcept {
    return enter<Call>([&]() -> CUresult {
        if constexpr (Call::kDelivery == calls::Delivery::refused) {
            return CUDA_ERROR_NOT_SUPPORTED;
        } else if constexpr (calls::is_handled<Call>) {
            return handled(arguments...);
        } else {
            return remote<Call>(arguments...);
        }
    });
}

}  // namespace gpupool::client

#define GP_EXPORT extern "C" __attribute__((visibility("default")))
#define GP_FORWARD(symbol, ...)                                                                   \
    return ::gpupool::client::route<::gpupool::calls::symbol>([](auto... arguments) -> CUresult { \
        return ::gpupool::client::entry::symbol(arguments...);                                    \
    } __VA_OPT__(, ) __VA_ARGS__)

#define GP_CALL(op, symbol, base, since, params, ...) \
    GP_EXPORT CUresult symbol(GP_TYPED(symbol, params)) { GP_FORWARD(symbol, GP_STRIP params); }
#define GP_PER_THREAD(symbol, suffix, since, params)                                 \
    GP_EXPORT CUresult symbol##suffix(GP_TYPED(symbol##suffix, params)) {            \
        static_assert(std::is_same_v<decltype(&symbol), decltype(&symbol##suffix)>); \
        const ::gpupool::client::PerThreadDefault per_thread;                        \
        GP_FORWARD(symbol, GP_STRIP params);                                         \
    }
