/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Cursors whose methods are replaced, to learn which key is sought and to return values from chains. */
#ifndef BPFOF_WIREDTIGER_CURSOR_H
#define BPFOF_WIREDTIGER_CURSOR_H

#include "engine.h"

namespace bpf_of {

/* Wraps a cursor that WiredTiger has opened with this configuration, if searches of it can be pushed down. */
void wrap_cursor(Engine *engine, WT_CURSOR *cursor, const char *config);
/* The table of a wrapped cursor, or null. */
Table *table_of(const WT_CURSOR *cursor);

/* Begins a session, which has no cursors yet; another one may have had its address. */
void begin_session(const WT_SESSION *session);
/* The session is about to be closed: closes the cursor that the program has not opened. */
void end_session(const WT_SESSION *session);
/*
 * Prepares the cursor's search to be cancelled: until the cursor goes to another row, its session keeps
 * the current snapshot. False if that is not possible.
 */
bool detach(const WT_CURSOR *cursor);

} /* namespace bpf_of */

#endif
