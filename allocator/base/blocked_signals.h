// While one exists, no signal interrupts this thread, nor those that it starts: the program's signals are for its own threads.
#pragma once

#include <pthread.h>

#include <csignal>

#include "cachalot/version.h"

CACHALOT_BEGIN

class BlockedSignals {
 public:
  BlockedSignals() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~BlockedSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

 private:
  sigset_t before_{};
};

CACHALOT_END
