// SPDX-License-Identifier: Apache-2.0 OR MIT

package main

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"unsafe"

	"github.com/pingcap/go-ycsb/pkg/util"
)

// How reads are served, by the name on the command line.
var modes = map[string]C.enum_ycsb_mode{
	"plain":  C.YCSB_PLAIN,
	"chains": C.YCSB_CHAINS,
	"blocks": C.YCSB_BLOCKS,
}

// settings say which database is opened, and how.
type settings struct {
	path, url, device string
	// One of the names in modes.
	mode string
	// The size of the loaded database.
	bytes   int64
	threads int
	// The database is created, and must not exist.
	create bool
}

// database is go-ycsb's view of a bpf_of::PushdownDB. A record is one value, in which go-ycsb's own
// codec numbers the fields.
type database struct {
	db    *C.struct_ycsb_db
	codec *util.RowCodec

	// go-ycsb counts failures, but does not report their reasons.
	mutex    sync.Mutex
	failures int
	first    error
}

// taken turns the message that a function of shim.h returned into an error, or nil.
func taken(message *C.char) error {
	if message == nil {
		return nil
	}
	defer C.free(unsafe.Pointer(message))
	return errors.New(C.GoString(message))
}

// takenBytes copies memory from C, and frees it.
func takenBytes(from C.struct_ycsb_bytes) []byte {
	defer C.free(unsafe.Pointer(from.data))
	return C.GoBytes(unsafe.Pointer(from.data), C.int(from.length))
}

// pointer returns the address and length that functions of shim.h take. Bytes may be empty.
func pointer(bytes []byte) (unsafe.Pointer, C.size_t) {
	if len(bytes) == 0 {
		return nil, 0
	}
	return unsafe.Pointer(&bytes[0]), C.size_t(len(bytes))
}

func open(s settings, codec *util.RowCodec) (*database, error) {
	options := C.struct_ycsb_options{
		path:    C.CString(s.path),
		url:     C.CString(s.url),
		device:  C.CString(s.device),
		mode:    modes[s.mode],
		bytes:   C.uint64_t(s.bytes),
		threads: C.size_t(s.threads),
	}
	for _, text := range []*C.char{options.path, options.url, options.device} {
		defer C.free(unsafe.Pointer(text))
	}
	if s.create {
		options.create = 1
	}
	d := &database{codec: codec}
	if err := taken(C.ycsb_open(&options, &d.db)); err != nil {
		return nil, fmt.Errorf("opening the database in %s: %w", s.path, err)
	}
	return d, nil
}

// settle waits until all writes are in tables that are known to the target.
func (d *database) settle() error {
	if err := taken(C.ycsb_settle(d.db)); err != nil {
		return fmt.Errorf("waiting until the database is at rest: %w", err)
	}
	return nil
}

// printStats prints how Gets were served, and what they cost.
func (d *database) printStats(to io.Writer) {
	var stats C.struct_ycsb_stats
	C.ycsb_stats(d.db, &stats)
	fmt.Fprint(to, "Gets by way:")
	for way, gets := range stats.gets {
		if gets != 0 {
			fmt.Fprintf(to, " %s %d,", C.GoString(stats.names[way]), gets)
		}
	}
	fmt.Fprintf(to, " blocks that chains read %d, seeks in one round trip %d\n", stats.blocks, stats.seeks)
	message := C.ycsb_last_error(d.db)
	defer C.free(unsafe.Pointer(message))
	if text := C.GoString(message); text != "" {
		fmt.Fprintf(to, "The last failed chain or refused table: %s\n", text)
	}
}

// noted remembers the error of an operation on a key, and returns it.
func (d *database) noted(operation, key string, err error) error {
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s %s: %w", operation, key, err)
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.failures == 0 {
		d.first = err
	}
	d.failures++
	return err
}

// failed reports whether operations have failed, how many, and why the first did.
func (d *database) failed() error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if d.failures == 0 {
		return nil
	}
	return fmt.Errorf("%d operations failed, the first: %w", d.failures, d.first)
}

func (d *database) get(key string, fields []string) (map[string][]byte, error) {
	var value C.struct_ycsb_bytes
	var found C.int
	data, length := pointer([]byte(key))
	if err := taken(C.ycsb_get(d.db, data, length, &value, &found)); err != nil {
		return nil, err
	}
	if found == 0 {
		return nil, errors.New("there is no such record")
	}
	return d.decoded(takenBytes(value), fields)
}

// decoded returns the fields of a record, all of which must be present.
func (d *database) decoded(row []byte, fields []string) (map[string][]byte, error) {
	values, err := d.codec.Decode(row, fields)
	if err == nil && len(values) < len(fields) {
		err = fmt.Errorf("the record has %d of %d fields", len(values), len(fields))
	}
	return values, err
}

func (d *database) put(key string, values map[string][]byte) error {
	row, err := d.codec.Encode(nil, values)
	if err != nil {
		return err
	}
	data, length := pointer([]byte(key))
	value, valueLength := pointer(row)
	return taken(C.ycsb_put(d.db, data, length, value, valueLength))
}

func (d *database) scan(from string, count int, fields []string) ([]map[string][]byte, error) {
	var found C.struct_ycsb_bytes
	data, length := pointer([]byte(from))
	if err := taken(C.ycsb_scan(d.db, data, length, C.size_t(count), &found)); err != nil {
		return nil, err
	}
	records := make([]map[string][]byte, 0, count)
	for rest := takenBytes(found); len(rest) > 0; {
		end := 4 + int(binary.LittleEndian.Uint32(rest))
		record, err := d.decoded(rest[4:end], fields)
		if err != nil {
			return nil, err
		}
		records = append(records, record)
		rest = rest[end:]
	}
	return records, nil
}

func (d *database) update(key string, values map[string][]byte) error {
	record, err := d.get(key, nil)
	if err != nil {
		return err
	}
	for field, value := range values {
		record[field] = value
	}
	return d.put(key, record)
}

// Close implements ycsb.DB.
func (d *database) Close() error {
	return taken(C.ycsb_close(d.db))
}

// InitThread implements ycsb.DB. Threads have no state of their own.
func (d *database) InitThread(ctx context.Context, _ int, _ int) context.Context {
	return ctx
}

// CleanupThread implements ycsb.DB.
func (d *database) CleanupThread(context.Context) {
}

// Read implements ycsb.DB: one Get. A missing record, or one that lacks fields, is an error.
func (d *database) Read(_ context.Context, _ string, key string, fields []string) (map[string][]byte, error) {
	values, err := d.get(key, fields)
	return values, d.noted("reading", key, err)
}

// Scan implements ycsb.DB: an iterator's Seek, and Next until there are enough records or no more.
func (d *database) Scan(_ context.Context, _ string, from string, count int, fields []string) ([]map[string][]byte, error) {
	records, err := d.scan(from, count, fields)
	return records, d.noted("scanning from", from, err)
}

// Update implements ycsb.DB: a Get and a Put, because a record is one value. Of two updates of one
// record at the same time one may be lost.
func (d *database) Update(_ context.Context, _ string, key string, values map[string][]byte) error {
	return d.noted("updating", key, d.update(key, values))
}

// Insert implements ycsb.DB: one Put.
func (d *database) Insert(_ context.Context, _ string, key string, values map[string][]byte) error {
	return d.noted("inserting", key, d.put(key, values))
}

// Delete implements ycsb.DB. The workloads here delete no records.
func (d *database) Delete(_ context.Context, _ string, key string) error {
	data, length := pointer([]byte(key))
	return d.noted("deleting", key, taken(C.ycsb_delete(d.db, data, length)))
}
